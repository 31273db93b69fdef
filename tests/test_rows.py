"""Rows: where they come from, which of them a batch holds, and what is refused."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import child_rows
from proxbi import (
    L1,
    AdaptiveProxBiO,
    Checkpoint,
    CheckpointError,
    GradientDescent,
    Minibatch,
    Problem,
    ProxBiO,
    ProxSABA,
    ProxSOBA,
    RowError,
    Rows,
    RowSource,
    minimize,
    one_step,
)
from proxbi._loop import Goal, advance, advance_in_place
from proxbi.checkpoint import checkpoints
from proxbi.problem import in_blocks
from proxbi.rows import Sampling, seed_of

DRAW = np.random.default_rng(3)
TARGETS = DRAW.normal(size=(50, 2)) + np.array([1.0, -1.0])


def upper(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum((y[None] - batch["t"]) ** 2, axis=1)) / 2


def lower(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum(((y - x)[None] + jnp.asarray(0.1, x.dtype) * batch["t"]) ** 2, axis=1)) / 2


def problem(rows: Any, **options: Any) -> Problem:
    return Problem(upper, lower, L1(0.1), Rows(upper=rows, lower=rows, **options))


class DataSet:
    def __len__(self) -> int:
        return len(TARGETS)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"t": TARGETS[i]}


class Loader:
    """Batches of ten, again and again; or once, as an iterator."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter([{"t": TARGETS[k : k + 10]} for k in range(0, 50, 10)])


def memory_map(folder: Path, values: np.ndarray = TARGETS) -> np.memmap:
    made = np.memmap(folder / "rows", values.dtype, "w+", shape=values.shape)
    made[:] = values
    made.flush()
    return np.memmap(folder / "rows", values.dtype, "r", shape=values.shape)


START = jnp.zeros(2)
SOLVER = ProxSOBA(0.1, 0.5, batch=8)


def run(rows: Any, solver: Any = SOLVER, steps: int = 15, **options: Any) -> Any:
    return minimize(problem(rows), START, START, solver, steps=steps, every=5, **options)


# --- which rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (2, 1), (7, 3), (64, 8), (65, 64), (3000, 500)])
def test_an_epoch_has_each_row_at_most_once_and_another_order_each_time(rows: int, batch: int) -> None:
    sampling, seed = Sampling(batch, rows), seed_of(jax.random.key(rows))
    batches = rows // batch
    index = jax.jit(jax.vmap(lambda number: sampling.index(seed, number)))(jnp.arange(2 * batches))
    first, second = (np.asarray(index[k : k + batches]).ravel() for k in (0, batches))
    for epoch in (first, second):
        assert len(set(epoch)) == batches * batch
        assert min(epoch) >= 0
        assert max(epoch) < rows
    assert rows < 10 or list(first) != list(second)


@pytest.mark.parametrize("rows", [6, 2000, 2048])
def test_every_row_is_as_likely_everywhere(rows: int) -> None:
    """The first two rows of 6,000 epochs, each cut into six classes: about 1,000 times each of them (the standard
    deviation is 29), and about 167 times each of the 36 pairs (13); for six rows, 200 times each of the 30.
    """
    sampling, seed, batches = Sampling(2, rows), seed_of(jax.random.key(1)), rows // 2
    pairs = jax.jit(jax.vmap(lambda epoch: sampling.index(seed, batches * epoch)))(jnp.arange(6000))
    classes = np.asarray(pairs) * 6 // rows
    assert all(abs(count - 1000) < 120 for count in Counter(classes[:, 0].tolist()).values())
    both = Counter(map(tuple, classes.tolist()))
    assert len(both) == (30 if rows == 6 else 36)
    assert all(abs(count - 6000 / len(both)) < 60 for count in both.values())


def test_with_replacement_rows_repeat() -> None:
    index = np.asarray(Sampling(40, 50, "replacement").index(seed_of(jax.random.key(0)), 0))
    assert len(set(index)) < 40
    assert set(index) <= set(range(50))


def test_two_seeds_differ_and_one_does_not() -> None:
    runs = [run({"t": TARGETS}, key=jax.random.key(seed)).state.state for seed in (0, 0, 1)]
    assert np.array_equal(runs[0].y, runs[1].y)
    assert not np.array_equal(runs[0].y, runs[2].y)


# --- where from -------------------------------------------------------------------------------------------------------


def test_arrays_memory_maps_and_data_sets_make_the_same_run(tmp_path: Path) -> None:
    class Own(RowSource):
        def __len__(self) -> int:
            return len(TARGETS)

        def take(self, indices: np.ndarray) -> Any:
            return {"t": TARGETS[indices]}

    runs = [run(rows) for rows in ({"t": TARGETS}, {"t": memory_map(tmp_path)}, DataSet(), Own())]
    for other in runs[1:]:
        for a, b in zip(jax.tree.leaves(runs[0].state.state), jax.tree.leaves(other.state.state), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert other.state.counts.as_dict() == runs[0].state.counts.as_dict()
        assert other.certificate_rows == 0  # all were looked at


def test_a_run_on_host_rows_is_resumed_bit_for_bit_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    straight = run(DataSet(), steps=15)
    run(DataSet(), steps=10, callbacks=[Checkpoint(tmp_path)])  # an epoch has six batches
    resumed = run(DataSet(), steps=15, resume=tmp_path)
    for a, b in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(straight.state), strict=True):
        assert isinstance(a, float) or np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_step_on_host_rows_takes_the_memory_of_the_one_before() -> None:
    """The new state lies where the old one did; the control, for states that others hold, needs room for both."""
    solver, made, x0 = ProxSOBA(0.1, 0.2, batch=8), problem({"t": jnp.asarray(TARGETS)}), jnp.zeros(2)
    state = jax.eval_shape(solver.init, made, x0, x0)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    number = np.int32(1)
    shared, kept = (
        way.light.lower(made, solver, state, jax.random.key(0), number, number, Goal(), number)
        .compile()
        .memory_analysis()
        .alias_size_in_bytes
        for way in (advance_in_place, advance)
    )
    assert shared >= size
    assert kept == 0


def test_what_callbacks_keep_of_a_run_on_host_rows_stays() -> None:
    kept: list[Any] = []
    steps = {"steps": 6, "every": 2, "callbacks": [lambda row, snapshot: kept.append(snapshot.state)]}
    minimize(problem(DataSet()), jnp.zeros(2), jnp.zeros(2), ProxSOBA(0.1, 0.2, batch=8), **steps)
    numbers = [int(state.draws.number) for state in kept]
    assert numbers == sorted(numbers)
    assert all(np.isfinite(np.asarray(state.y)).all() for state in kept)


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    class Other(DataSet):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"t": TARGETS[i] + 1}

    run(DataSet(), steps=5, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(CheckpointError, match="its data differs"):
        run(Other(), steps=10, resume=tmp_path)


def test_loaders_work_but_cannot_be_saved(tmp_path: Path) -> None:
    result = run(Loader())
    assert result.counts.rows > 0
    assert result.certificate_rows == 10
    assert "estimate from 10 rows" in str(result)
    with pytest.raises(CheckpointError, match="cannot be saved"):
        run(Loader(), callbacks=[Checkpoint(tmp_path)])


def test_a_loader_that_ends_early_is_named() -> None:
    with pytest.raises(RowError, match="ended early"):
        run(iter(Loader()))


def test_blocks_are_the_whole() -> None:
    case = problem({"t": TARGETS})
    parts = in_blocks(case, 8)  # six of them, and two rows
    x, y, v = (jnp.asarray(DRAW.normal(size=2)) for _ in range(3))

    @jax.jit
    def oracles(p: Problem) -> Any:
        values = p.value_upper(x, y), p.value_lower(x, y)
        gradients = p.grad_upper(x, y), p.grad_lower(x, y), p.grad_lower_x(x, y)
        return values, gradients, p.hvp(x, y)(v), p.cross(x, y)(v)

    jax.tree.map(np.testing.assert_allclose, oracles(parts), oracles(case))
    assert in_blocks(case, 50) is case


# --- in processes of their own ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    command = [sys.executable, child_rows.__file__, "kill", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 20:
                process.kill()
    assert process.returncode == -signal.SIGKILL
    step = int(checkpoints(tmp_path)[0].stem.removeprefix("step-"))
    resumed, straight = child_rows.solve(step + 8, resume=tmp_path), child_rows.solve(step + 8)
    for a, b in zip(jax.tree.leaves(resumed.state.state), jax.tree.leaves(straight.state.state), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert resumed.counts.as_dict() == straight.counts.as_dict()


@pytest.mark.slow
@pytest.mark.hours  # outside of CI, for its minutes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="says how much memory is anonymous")
def test_a_million_rows_of_a_file_take_less_than_a_gigabyte(tmp_path: Path) -> None:
    command = [sys.executable, child_rows.__file__, "memory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    megabytes, rows, some = map(int, done.stdout.split())
    assert megabytes < 1000
    assert some == 0  # the certificate looked at all of them:
    assert rows >= 3 * child_rows.ROWS


# --- what is refused --------------------------------------------------------------------------------------------------


def with_nan() -> np.ndarray:
    bad = TARGETS.copy()
    bad[[7, 31]] = np.nan
    return bad


INNER = ProxBiO(one_step(GradientDescent(0.1, 1), 0.1), 0.1)

BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "rows of two lengths": (
        lambda: Rows(upper={"t": TARGETS}, lower={"t": TARGETS, "u": TARGETS[:9]}),
        RowError,
        r"lower\['u'\] has 9 rows, but lower\['t'\] has 50",
    ),
    "no rows": (lambda: Rows(upper={"t": TARGETS}, lower={"t": TARGETS[:0]}), RowError, "lower has no rows"),
    "no leaves": (lambda: Rows(upper={}, lower={"t": TARGETS}), RowError, "upper has no rows"),
    "no array": (lambda: Rows(upper={"t": "abc"}, lower={"t": TARGETS}), TypeError, r"upper\['t'\] must be a numeric"),
    "a number": (lambda: Rows(upper={"t": 1.0}, lower={"t": TARGETS}), TypeError, r"upper\['t'\] must be a numeric"),
    "NaN": (lambda: Rows(upper={"t": with_nan()}, lower={"t": TARGETS}), RowError, r"upper\['t'\].*2 row\(s\): 7, 31"),
    "labels": (
        lambda: Rows(upper={"t": np.array([0, 1, 3, -1])}, lower={"t": TARGETS}, classes=3),
        RowError,
        r"upper\['t'\] has values outside of 0..2 in 2 row\(s\): 2, 3",
    ),
    "classes": (lambda: Rows(upper={"t": TARGETS}, lower={"t": TARGETS}, classes=0), ValueError, "classes must be"),
    "a batch too large": (lambda: run({"t": TARGETS}, ProxSOBA(batch=51)), ValueError, "batch is 51 rows, but .* 50"),
    "batch": (lambda: ProxSOBA(batch=0), ValueError, "batch must be an integer > 0"),
    # Wrong on purpose, as the types say:
    "sampling": (lambda: ProxSOBA(sampling="other"), ValueError, "sampling must be"),  # type: ignore[arg-type]  # which is tested
    "sampling of SABA": (lambda: ProxSABA(sampling="replacement"), ValueError, "sampling must be"),
    "average": (lambda: ProxSOBA(average=1.0), ValueError, r"average must be in \[0, 1\)"),
    "host rows for SABA": (
        lambda: run(DataSet(), ProxSABA()),
        TypeError,
        "data: its rows are on the host, and ProxSABA",
    ),
    "a loader for all": (lambda: run(Loader(), AdaptiveProxBiO()), RowError, "an iterable has no length"),
    "polish on host": (lambda: run(DataSet(), polish=True), ValueError, "polish needs all rows on the device"),
    "polish": (lambda: run({"t": TARGETS}, AdaptiveProxBiO(), polish=True), ValueError, "polish is for solvers"),
    "a solver that compares": (lambda: Minibatch(AdaptiveProxBiO()), TypeError, "solver must not be AdaptiveProxBiO"),
    # Likewise:
    "no solver": (lambda: Minibatch(3), TypeError, "solver must be a solver of fixed work"),  # type: ignore[arg-type]  # which is tested
    "a batch solver inside": (lambda: Minibatch(Minibatch(INNER)), TypeError, "solver must be a solver of fixed work"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(name: str) -> None:
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        make()


def test_nan_in_a_batch_from_the_host_is_named_by_row(tmp_path: Path) -> None:
    with pytest.raises(RowError, match=r"\['t'\] has NaN or infinite values in .* row\(s\): (7|31)"):
        run({"t": memory_map(tmp_path, with_nan())}, steps=20)
