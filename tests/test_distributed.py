"""Problems on a mesh: the same numbers on 1, 2 and 4 devices, one all-reduce for each product, and nothing gathered."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import child_mesh
import proxbi
from proxbi import (
    L1,
    L2,
    Box,
    Checkpoint,
    NegativeCappedL1,
    Problem,
    RowError,
    Rows,
    RowSource,
    Separable,
    Simplex,
    Zero,
    glm,
    minimize,
    shard,
)
from proxbi.checkpoint import CheckpointError, fingerprint
from proxbi.distributed import _layout, _parts, _ranks, first_node, launch_of, row_mesh
from proxbi.problem import ridged

FEW = {"steps": 10, "every": 5}


def child(part: str, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `child_mesh.py` says on 4 virtual devices. They wait for one another: with too few threads, for ever."""
    flags = "--xla_force_host_platform_device_count=4 --xla_cpu_parallel_codegen_split_count=1"
    flags += " --xla_backend_optimization_level=0" if part == "quick" else ""
    environment = os.environ | {"XLA_FLAGS": flags, "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, child_mesh.__file__, part, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(folder / "arrays.npz") as arrays:
        return json.loads((folder / "said.json").read_text()), dict(arrays)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return child("quick", tmp_path_factory.mktemp("quick"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "general"])
def test_prox_bio_is_the_same_on_meshes(name: str, quick: Any) -> None:
    said, x = quick
    for count in (2, 4):
        if f"{name}-{count}" not in x:
            continue
        np.testing.assert_allclose(x[f"{name}-{count}"], x[f"{name}-0"], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(x[f"{name}-{count}"] == 0, x[f"{name}-0"] == 0)
        assert said[f"{name}-{count}"] == pytest.approx(said[f"{name}-0"], rel=1e-12)
    if name == "linear":
        assert 10 < np.sum(x["linear-0"] == 0) < len(x["linear-0"]) - 10


def test_reruns_are_bit_identical(quick: Any) -> None:
    _, x = quick
    assert x["linear-again"].tobytes() == x["linear-2"].tobytes()


@pytest.mark.parametrize("name", ["linear", "general"])
def test_one_all_reduce_for_each_product(name: str, quick: Any) -> None:
    assert quick[0][f"oracles-{name}"] == {"grad_lower": 1, "hvp": 1, "cross": 0}


def test_what_is_sent_does_not_grow_with_the_rows(quick: Any) -> None:
    few, many = quick[0]["sent"]
    assert few == many
    assert set(few) == {"all-reduce"}


def test_a_gather_would_be_seen() -> None:
    """The negative control of the tests above."""
    text = "%x = f64[768,3]{1,0} all-gather(%a), dimensions={0}\n%y = (f32[2]{0}, f32[]) all-reduce-start(%b, %c)"
    assert child_mesh.collectives(text) == {"all-gather": 768 * 3 * 8, "all-reduce": 12}


@pytest.mark.slow
@pytest.mark.hours  # two minutes on two busy cores, most of it compiling
def test_the_default_solver_and_batches_on_meshes(tmp_path: Path) -> None:
    said, x = child("slow", tmp_path)
    for count in (0, 1, 2, 4):
        assert said[f"default-status-{count}"] == "CONVERGED"
        assert said[f"default-{count}"] == pytest.approx(said["default-0"], rel=1e-8)
        np.testing.assert_allclose(x[f"default-{count}"], x["default-0"], atol=1e-6)
    np.testing.assert_allclose(x["batches-4"], x["batches-0"], rtol=0, atol=1e-12)
    for name in ("default", "batches", "general"):
        assert set(said[f"sent-{name}"]) == {"all-reduce"}


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_single_precision_on_meshes(tmp_path: Path) -> None:
    _, x = child("single", tmp_path)
    for count in (1, 2, 4):
        largest = np.abs(x["linear-0"]).max()
        np.testing.assert_allclose(x[f"linear-{count}"], x["linear-0"], rtol=0, atol=1e-6 * max(1, largest))
        np.testing.assert_array_equal(x[f"linear-{count}"] == 0, x["linear-0"] == 0)


# --- one device: padding, results, checkpoints ------------------------------------------------------------------------


def linear(**options: Any) -> Problem:
    return glm.linear_model(
        **child_mesh.data(),
        loss="softmax",
        **{"weights": jax.nn.sigmoid, "ridge": 0.1, "regularizer": L1(5e-4)} | options,
    )


def test_results_have_no_padding_and_resume(tmp_path: Path) -> None:
    problem, start = shard(linear()), child_mesh.starts()
    half = minimize(problem, *start, child_mesh.FIXED, **FEW, callbacks=[Checkpoint(tmp_path)])
    assert all(child_mesh.ROWS in leaf.shape or leaf.size <= 18 for leaf in jax.tree.leaves(half.state.state))
    whole = minimize(problem, *start, child_mesh.FIXED, steps=20, every=5)
    for resume in (half, tmp_path):
        resumed = minimize(problem, *start, child_mesh.FIXED, steps=20, every=5, resume=resume)
        np.testing.assert_array_equal(resumed.x, whole.x)
    plain = minimize(linear(), *start, child_mesh.FIXED, steps=20, every=5)
    np.testing.assert_allclose(whole.x, plain.x, atol=1e-12)
    assert whole.counts.as_dict() == plain.counts.as_dict()
    other = shard(linear(regularizer=L1(6e-4)))
    with pytest.raises(CheckpointError, match="its regularizer differs"):
        minimize(other, *start, child_mesh.FIXED, steps=20, resume=tmp_path)


def test_the_padding_counts_for_nothing_and_stays() -> None:
    """Also where h and the weights are infinite or NaN at 0, which is what the padding holds."""
    x = jnp.where(jnp.arange(384) < 5, 1.0, 0.0)
    for h in (
        NegativeCappedL1(0.5, 2.0),
        Box(0.5, 2.0),
        2.0 * L1(0.3),
        L1(jnp.arange(384.0)),
        Box(0.5, 2.0).shift(jnp.ones(384)),
    ):
        padded = _parts.on_rows(h, 5, 384)
        own = jax.tree.map(lambda leaf: leaf[:5] if leaf.ndim else leaf, h)
        assert float(padded.value(x)) == pytest.approx(float(own.value(x[:5])))
        moved = padded.prox(x, 0.7)
        np.testing.assert_allclose(moved[:5], own.prox(x[:5], 0.7))
        assert not np.any(moved[5:])


def test_weights_that_cannot_stand_zero() -> None:
    x0, y0 = child_mesh.starts()
    problem = linear(weights=lambda x: 1 / x, regularizer=Box(0.5, 2.0))
    result = minimize(shard(problem), x0 + 1, y0, child_mesh.FIXED, **FEW)
    np.testing.assert_allclose(result.x, minimize(problem, x0 + 1, y0, child_mesh.FIXED, **FEW).x, atol=1e-12)


def test_weights_beside_other_unknowns() -> None:
    x0, y0 = child_mesh.starts()
    start = {"weights": x0, "ridge": jnp.asarray(-2.0)}
    h = Separable({"weights": Box(-3.0, 3.0), "ridge": Zero()})
    problem = linear(weights=lambda x: jax.nn.sigmoid(x["weights"]), ridge=lambda x: jnp.exp(x["ridge"]), regularizer=h)
    on_mesh, plain = (minimize(p, start, y0, child_mesh.FIXED, **FEW) for p in (shard(problem), problem))
    for name in start:
        np.testing.assert_allclose(on_mesh.x[name], plain.x[name], atol=1e-11)


@pytest.mark.parametrize("rows", [1, 5, 383, 384, 385, 10_000, 7_680_001, 1_000_000_000])
def test_places_are_few_and_do_not_depend_on_the_devices(rows: int) -> None:
    places = _layout.places_for(rows)
    assert places % _layout.UNITS == 0
    assert places % (_layout.UNITS * _layout.block_of(rows)) == 0
    assert rows <= places < rows + _layout.UNITS * max(1, -(-rows // (_layout.UNITS * 20_000)))
    assert _layout.places_for(rows, [places]) > places


def test_digests_tell_data_apart() -> None:
    def mark(change: float) -> str:
        parts = child_mesh.data()
        features, labels = parts["train"]
        changed = glm.linear_model((features.at[7, 2].add(change), labels), parts["held_out"], "softmax")
        return fingerprint(shard(changed), child_mesh.FIXED)["data"]

    assert mark(0.0) == mark(0.0) != mark(1e-14)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "h", [L2(0.1), Simplex(), Separable({"a": L2(0.1), "b": Zero()})], ids=["L2", "Simplex", "part"]
)
def test_a_prox_that_is_not_separable_is_refused_by_name(h: Any) -> None:
    with pytest.raises(TypeError, match=f"regularizer must be separable on a mesh, and {type(h).__name__} is not"):
        shard(linear(regularizer=h))


def general(upper: Any = child_mesh.upper, lower: Any = child_mesh.lower) -> Problem:
    return Problem(upper, lower, Box(-3.0, 3.0), child_mesh.general().data)


MIXED: dict[str, tuple[Any, str]] = {
    "weights": (lambda: linear(weights=jax.nn.softmax), "weights depends on entries of x that belong to other rows"),
    "ridge": (lambda: linear(ridge=lambda x: jnp.exp(x[-1])), "ridge depends on entries of x"),
    "lower": (
        lambda: general(lower=lambda x, y, b: child_mesh.lower(x, y, b) + 1e-9 * jnp.sum(x**2)),
        "lower depends on entries of x that belong to other rows",
    ),
    "upper": (
        lambda: general(upper=lambda x, y, b: child_mesh.upper(x, y, b) + jnp.mean(x**2)),
        "upper depends on entries of x",
    ),
    "a sum": (
        lambda: general(upper=lambda x, y, b: jnp.sum(child_mesh.loss(y, b))),
        "upper must be a mean over the rows of its batch",
    ),
    "numbers of rows": (
        lambda: general(lower=lambda x, y, b: child_mesh.lower(x, y, b) * (1 + jnp.mean(b.index.astype(float)))),
        "lower must be a mean over the rows of its batch",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_functions_that_look_at_rows_of_others_are_refused(name: str) -> None:
    make, message = MIXED[name]
    with pytest.raises(ValueError, match=message):
        minimize(shard(make()), *child_mesh.starts(), child_mesh.FIXED, **FEW)


def test_what_has_no_rows_cannot_be_spread() -> None:
    with pytest.raises(TypeError, match=r"a Problem on data=Rows.*got Problem on NoneType"):
        shard(Problem(lambda x, y: jnp.sum(y), lambda x, y: jnp.sum((y - x) ** 2)))
    with pytest.raises(TypeError, match="mesh must be a jax.sharding.Mesh, got int".replace(".", r"\.")):
        shard(linear(), 2)  # type: ignore[arg-type]  # which is what is tested
    with pytest.raises(ValueError, match="mesh must have one axis, called 'rows'"):
        shard(linear(), jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",)))
    with pytest.raises(ValueError, match="problem is on a mesh already"):
        shard(shard(linear()))
    loader = Rows(upper=iter([{"z": 1}]), lower=child_mesh.general().data.lower)
    with pytest.raises(TypeError, match="upper: rows of a IterableRows cannot be spread"):
        shard(Problem(child_mesh.upper, child_mesh.lower, data=loader))


def test_a_mesh_is_for_minimize() -> None:
    x0, y0 = child_mesh.starts()
    with pytest.raises(TypeError, match="problem is on a mesh, which is for minimize alone"):
        proxbi.sweep(shard(linear()), [child_mesh.FIXED], x0, y0)


def test_rows_of_a_file_are_read_by_those_who_need_them(tmp_path: Path) -> None:
    parts = child_mesh.data()
    levels = {}
    for level, name in (("lower", "train"), ("upper", "held_out")):
        arrays = dict(zip("zt", map(np.asarray, parts[name]), strict=True))
        levels[level] = {}
        for leaf, array in arrays.items():
            np.save(tmp_path / f"{level}{leaf}.npy", array)
            levels[level][leaf] = np.load(tmp_path / f"{level}{leaf}.npy", mmap_mode="r")
    problem = Problem(child_mesh.upper, child_mesh.lower, Box(-3.0, 3.0), Rows(**levels))
    found = minimize(shard(problem), *child_mesh.starts(), child_mesh.FIXED, **FEW)
    expected = minimize(shard(general()), *child_mesh.starts(), child_mesh.FIXED, **FEW)
    np.testing.assert_array_equal(found.x, expected.x)


def test_more_devices_than_threads_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    _layout.require_mesh(row_mesh())
    monkeypatch.setattr(_layout, "_threads", lambda: 0)
    with pytest.warns(_layout.ShardWarning, match="mesh has 1 CPU devices of this process, which has 0 threads"):
        _layout.require_mesh(row_mesh())


class Own(RowSource):
    """Rows that say which of them are read."""

    def __init__(self, features: Any, targets: Any):
        self.rows, self.read = (np.array(features), np.array(targets)), list[tuple[int, int]]()

    def __len__(self) -> int:
        return len(self.rows[0])

    def take(self, indices: np.ndarray) -> Any:
        return tuple(part[indices] for part in self.rows)

    def block(self, start: int, stop: int) -> Any:
        self.read.append((start, stop))
        return tuple(part[start:stop] for part in self.rows)


def test_a_streamed_model_is_spread_and_each_process_reads_its_own_rows() -> None:
    parts = child_mesh.data()
    source = Own(*parts["train"])
    options = {"weights": jax.nn.sigmoid, "ridge": 0.1, "regularizer": L1(5e-4)}
    model = glm.streamed_model(source, parts["held_out"], **options, check=False)
    assert source.read == [(0, 1)]  # to see the shapes
    found = minimize(shard(model), *child_mesh.starts(), child_mesh.FIXED, **FEW)
    assert source.read.count((0, child_mesh.ROWS)) == 1  # those of this process, which has all
    expected = minimize(shard(linear()), *child_mesh.starts(), child_mesh.FIXED, **FEW)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-12)
    source.rows[1][7] = -1
    with pytest.raises(RowError, match=r"train\[1\] has values outside of .* in 1 row\(s\): 7"):
        shard(model)


# --- launchers --------------------------------------------------------------------------------------------------------

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "gpu[007-009,12],login",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_NAMESPACE": "prterun-node-1234@1",
}
JAX = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}


def test_launchers_are_recognised() -> None:
    assert launch_of(SLURM) == ("gpu007:62055", 8, 5, 1)
    assert launch_of(OPEN_MPI) == ("127.0.0.1:61493", 4, 3, 3)
    assert launch_of(JAX) == ("10.0.0.1:1234", 2, 1, None)
    assert launch_of(OPEN_MPI | SLURM)[1:3] == (4, 3)  # mpirun within an allocation of Slurm
    assert launch_of(JAX | SLURM) == ("10.0.0.1:1234", 2, 1, 1)
    assert launch_of(JAX, coordinator_address="h:1", num_processes=9, process_id=0) == ("h:1", 9, 0, None)
    assert launch_of({}, coordinator_address="[::1]:80", num_processes=1, process_id=0).process_id == 0


@pytest.mark.parametrize(
    ("nodes", "first"), [("n1", "n1"), ("n[1-3]", "n1"), ("a-b[08,10-12],c", "a-b08"), ("r[2-3]n[01-16]x", "r2n01x")]
)
def test_the_first_node_of_slurms_lists(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "coordinator_address and num_processes and process_id must be given: no launcher left it"),
        (SLURM | {"SLURM_STEP_NODELIST": ""}, "must be given"),  # sbatch without srun
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "coordinator_address must be given"),  # on several machines
        (JAX | {"JAX_PROCESS_ID": "two"}, "JAX_PROCESS_ID must be a number, got 'two'"),
        (JAX | {"JAX_PROCESS_ID": "2"}, r"process_id must be in 0..num_processes - 1, got 2 of 2"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": "host"}, "coordinator_address must be host:port, got 'host'"),
    ],
)
def test_incomplete_environments_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launch_of(environment)


def test_initialize_comes_first() -> None:
    with pytest.raises(RuntimeError, match="before any JAX computation"):
        proxbi.distributed.initialize("127.0.0.1:1", 1, 0)


def test_ranks_that_differ_are_named() -> None:
    same, other = [1, 2], [1, 3]
    assert _ranks.difference("x0", np.array([same, same])) == ""
    assert _ranks.difference("x0", np.array([same, other])) == "x0 differs on rank 1 from that on rank 0"
    assert _ranks.difference("x0", np.array([same, other, same, other])).startswith("x0 differs on ranks 1, 3 from")
    assert row_mesh().axis_names == ("rows",)


def test_damping_keeps_the_place_of_a_problem() -> None:
    """Without it the default solver would take the programs of one device for rows on a mesh."""
    sharded = shard(linear(), row_mesh())
    assert ridged(sharded, 0.1).place is sharded.place
