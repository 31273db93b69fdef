"""Checkpoints: whole or not there at all, refused when damaged or foreign, and resumed bit for bit after `kill -9`."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import child
from cases import follow
from proxbi import (
    AID,
    CG,
    L1,
    L2,
    Checkpoint,
    GradientDescent,
    Problem,
    ProxBiO,
    Result,
    checkpoint,
    minimize,
    paper_solver,
)
from proxbi.checkpoint import CheckpointError, CheckpointWarning, Snapshot, checkpoints, fingerprint
from proxbi.problem import Counts

SOLVER = paper_solver("proximal BiO-AID", alpha=1.0, beta=0.5, T=5)
CASE = follow(0.1)


def solve(
    problem: Problem = CASE.problem, solver: Any = SOLVER, x0: Any = CASE.x0, y0: Any = CASE.y0, **options: Any
) -> Result:
    return minimize(problem, x0, y0, solver, **{"steps": 20, "every": 5} | options)


def bits(result: Result) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.state.state)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the checkpoints of steps 10, 15 and 20."""
    solve(callbacks=[Checkpoint(tmp_path)])
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def file_of(step: int) -> str:
    return f"step-{step:010d}.safetensors"


# --- writing ----------------------------------------------------------------------------------------------------------


def test_the_last_k_are_kept_and_nothing_else(tmp_path: Path) -> None:
    solve(steps=40, callbacks=[Checkpoint(tmp_path / "a")])
    assert names(tmp_path / "a") == [file_of(step) for step in (30, 35, 40)]
    solve(steps=40, callbacks=[Checkpoint(str(tmp_path / "b" / "c"), every=3, keep=10)])
    assert names(tmp_path / "b" / "c") == [file_of(step) for step in (15, 30, 40)]


def test_files_of_others_are_left_alone(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    solve(steps=60, callbacks=[Checkpoint(folder)], resume=folder)
    assert "notes.txt" in names(folder)


def test_a_folder_that_is_not_there_yet_starts_afresh(tmp_path: Path) -> None:
    """So that one script serves the first run and every restart."""
    where = tmp_path / "new"
    first = solve(steps=10, callbacks=[Checkpoint(where)], resume=where)
    second = solve(callbacks=[Checkpoint(where)], resume=where)
    assert (first.state.step, second.state.step) == (10, 20)
    assert bits(second) == bits(solve())


def test_a_new_run_does_not_write_among_the_checkpoints_of_an_old_one(folder: Path) -> None:
    """Its own would be the older ones by number, deleted at once, and a resumption would take up the old run."""
    with pytest.raises(CheckpointError, match=r"holds the checkpoints of another run, up to step-0000000020.*resume="):
        solve(x0=CASE.x0 + 1, steps=10, callbacks=[Checkpoint(folder)])
    assert names(folder) == [file_of(step) for step in (10, 15, 20)]


def test_a_future_that_was_given_up_is_removed(folder: Path) -> None:
    solve(steps=12, every=2, callbacks=[Checkpoint(folder)], resume=folder / file_of(10))
    assert names(folder) == [file_of(step) for step in (10, 12)]


@pytest.mark.parametrize("where", ["a file", "under a file"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_run(
    where: str, tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "occupied"
    file.write_text("")
    target = file if where == "a file" else file / "sub"
    monkeypatch.setattr(checkpoint, "_write_atomically", None)
    with pytest.raises(CheckpointError, match=r"folder '.*occupied.*' cannot be written"):
        solve(callbacks=[Checkpoint(target)])


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (folder / name).read_bytes() for name in names(folder)}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CheckpointWarning, match="No space left"):
        result = solve(steps=40, callbacks=[Checkpoint(folder)], resume=folder)
    assert result.state.step == 40
    assert {name: (folder / name).read_bytes() for name in names(folder)} == before


def test_pickle_is_not_involved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    solve(steps=10, callbacks=[Checkpoint(tmp_path)])
    solve(resume=tmp_path)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int32", "bool", "uint8"]
)
def test_dtypes_and_shapes_go_round(dtype: str, tmp_path: Path) -> None:
    values = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2))).astype(dtype)
    state = {"matrix": values, "scalar": values[0, 0], "nested": [values[0], None, (values[:0],)]}
    history = [{"step": 5, "objective": float("nan"), "linear_residual": None, "label": "über"}]
    path = checkpoint.save(tmp_path, Snapshot(7, state, Counts(hvp=3), history), {"a": "b"}, 3)
    found = checkpoint.load(path, state, {"a": "b"})
    assert found is not None
    assert jax.tree.structure(found.state) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(found.state), jax.tree.leaves(state), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert (found.step, found.counts.as_dict()) == (7, Counts(hvp=3).as_dict())
    assert str(found.history) == str(history)


def test_runs_in_single_precision_resume(tmp_path: Path) -> None:
    case = follow(0.1, dtype=jnp.float32)
    start = {"problem": case.problem, "x0": case.x0, "y0": case.y0}
    solve(**start, steps=10, callbacks=[Checkpoint(tmp_path)])
    resumed = solve(**start, resume=tmp_path)
    assert resumed.x.dtype == jnp.float32
    assert bits(resumed) == bits(solve(**start))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
def test_numbers_of_low_precision_are_kept_as_they_are(dtype: Any, tmp_path: Path) -> None:
    """Solvers refuse them in x0 and y0, but a state of one's own may hold some."""
    state = {"a": jnp.asarray(np.linspace(-1, 1, 7), dtype), "b": jnp.float64(2)}
    checkpoint.save(tmp_path, Snapshot(3, state, Counts(), []), {}, keep=1)
    loaded = checkpoint.load(tmp_path, jax.tree.map(jnp.zeros_like, state), {})
    assert loaded is not None
    assert loaded.state["a"].dtype == dtype
    assert np.asarray(loaded.state["a"]).tobytes() == np.asarray(state["a"]).tobytes()


# --- damage -----------------------------------------------------------------------------------------------------------


def damage(folder: Path, step: int, change: Callable[[bytes], bytes]) -> None:
    path = folder / file_of(step)
    path.write_bytes(change(path.read_bytes()))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "without the last byte": lambda content: content[:-1],
    "a byte too many": lambda content: content + b"\0",
    "random bytes": lambda content: np.random.default_rng(0).bytes(len(content)),
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"step,objective\n1,2\n",
    "two files in one": lambda content: content + content,
    "the header says it is endless": lambda content: b"\xff" * 8 + content[8:],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_newest_file_is_skipped_with_a_warning(name: str, folder: Path) -> None:
    damage(folder, 20, DAMAGE[name])
    with pytest.warns(CheckpointWarning, match=rf"{file_of(20)}' cannot be used.*The checkpoint before it is used"):
        resumed = solve(steps=30, resume=folder)
    assert bits(resumed) == bits(solve(steps=30))
    with pytest.raises(CheckpointError, match=f"{file_of(20)}' cannot be used"):
        solve(steps=30, resume=folder / file_of(20))


def test_two_damaged_files_are_skipped_and_three_are_an_error(folder: Path) -> None:
    for step in (20, 15):
        damage(folder, step, DAMAGE["half"])
    with pytest.warns(CheckpointWarning, match="cannot be used") as seen:
        resumed = solve(steps=30, resume=folder)
    assert len(seen) == 2
    assert bits(resumed) == bits(solve(steps=30))
    damage(folder, 10, DAMAGE["half"])
    warnings.simplefilter("ignore")
    with pytest.raises(CheckpointError, match=file_of(10)):  # rather than starting afresh and losing what there may be
        solve(steps=30, resume=folder)


def test_no_flipped_bit_goes_unnoticed(folder: Path) -> None:
    """One bit in every byte: the length of the header, the header, the metadata and the arrays."""
    path = folder / file_of(20)
    content = path.read_bytes()
    like = SOLVER.init(CASE.problem, CASE.x0, CASE.y0)
    marks = fingerprint(CASE.problem, SOLVER)
    assert checkpoint.load(path, like, marks) is not None
    flips = np.random.default_rng(0).integers(0, 8, len(content))
    for place, bit in enumerate(flips):
        changed = bytearray(content)
        changed[place] ^= 1 << int(bit)
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            checkpoint.load(path, like, marks)


def test_a_foreign_safetensors_file_is_refused(folder: Path) -> None:
    path = folder / file_of(25)
    save_file({"weight": np.ones(3)}, path)
    with pytest.raises(CheckpointError, match="proxbi did not write it"):
        solve(resume=path)
    save_file({"weight": np.ones(3)}, path, {"format": "pt"})
    with pytest.warns(CheckpointWarning, match="proxbi did not write it"):
        assert solve(steps=30, resume=folder).state.step == 30


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", "proxbi-checkpoint-99")
    solve(steps=5, callbacks=[Checkpoint(tmp_path)])
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match="its format is 'proxbi-checkpoint-99', and 'proxbi-checkpoint-2' is read"
    ):
        solve(resume=tmp_path)


def test_a_checkpoint_of_another_version_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its solvers may take other steps, and then a run would not go on as if it had never stopped."""
    monkeypatch.setattr(checkpoint, "version", lambda name: "9.8.7")
    with pytest.raises(CheckpointError, match=r"was written by proxbi .*, and this is 9\.8\.7"):
        solve(steps=30, resume=folder)


# --- other runs -------------------------------------------------------------------------------------------------------


def replaced(**parts: Any) -> dict[str, Any]:
    p = CASE.problem
    fields = {"upper": p.upper, "lower": p.lower, "regularizer": p.regularizer, "data": p.data}
    return {"problem": Problem(**fields | parts)}


NUDGED = {**CASE.problem.data, "d": CASE.problem.data["d"].at[2].add(1e-17)}  # by one bit
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "data": (replaced(data=NUDGED), "its data differs"),
    "strength": (replaced(regularizer=L1(0.2)), "its regularizer differs"),
    "regularizer": (replaced(regularizer=L2(0.1)), "its regularizer differs"),
    "upper": (replaced(upper=lambda x, y, data: jnp.sum(y**2)), "its upper differs"),
    "lower": (replaced(lower=lambda x, y, data: jnp.sum((y - x) ** 2)), "its lower differs"),
    "steps": ({"solver": paper_solver("proximal BiO-AID", alpha=1.0, beta=0.5, T=6)}, "its solver differs"),
    "method": ({"solver": paper_solver("proximal BiO-ITD", alpha=1.0, beta=0.5, T=5)}, "its solver differs"),
    "shape": (
        replaced(data=None, lower=lambda x, y: y @ (y - x), upper=lambda x, y: jnp.sum(y))
        | {"x0": np.ones(3), "y0": np.ones(3)},
        "belongs to another problem or solver",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_the_checkpoint_of_another_run_is_refused_naming_what_differs(name: str, folder: Path) -> None:
    change, message = OTHER[name]
    for resume in (folder, folder / file_of(20)):
        with pytest.raises(CheckpointError, match=message):
            solve(resume=resume, **change)


@pytest.mark.parametrize("other", [{"dtype": "float32"}, {"shape": (1,)}], ids=str)
def test_another_dtype_or_shape_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    problem = Problem(lambda x, y: jnp.sum(y**2), lambda x, y: jnp.sum((y - x) ** 2))
    plain = paper_solver("BiO-AID", alpha=0.25, beta=0.5, T=5)
    solve(problem, plain, np.ones(4), np.ones(4), steps=5, callbacks=[Checkpoint(tmp_path)])
    start = np.ones(**{"shape": 4} | other)
    with pytest.raises(CheckpointError, match=r"has \.x as float64\[4\], but x0 and y0 make it float"):
        solve(problem, plain, start, start, resume=tmp_path)


def test_another_structure_is_refused(tmp_path: Path) -> None:
    trees, vectors = follow(0.1, trees=True), CASE
    solve(trees.problem, x0=trees.x0, y0=trees.y0, steps=5, callbacks=[Checkpoint(tmp_path)])
    with pytest.raises(CheckpointError, match=r"holds another state: .*\['a'\]"):
        solve(vectors.problem, resume=tmp_path)


def test_step_sizes_may_change(folder: Path) -> None:
    solver = paper_solver("proximal BiO-AID", alpha=0.9, beta=0.2, T=5)
    assert solve(solver=solver, steps=25, resume=folder).state.step == 25


# --- fingerprints -----------------------------------------------------------------------------------------------------

SHIFT = 1.0


def shifted(x: Any, y: Any) -> Any:
    return jnp.sum((y - SHIFT) ** 2)


def helper(y: Any) -> Any:
    return jnp.sum(y**2)


def helped(x: Any, y: Any) -> Any:
    return helper(y)


class Loss(eqx.Module):
    power: int = eqx.field(static=True)

    def __call__(self, x: Any, y: Any) -> Any:
        return jnp.sum(y**self.power)


def loss_with(make: Callable[[Any], Any], constant: Any) -> str:
    problem = Problem(make(constant), lambda x, y: jnp.sum((y - x) ** 2))
    return fingerprint(problem, SOLVER)["upper"]


CLOSURES: dict[str, Callable[[Any], Any]] = {
    "closure": lambda c: lambda x, y: jnp.sum((y - c) ** 2),
    "closure, three arguments": lambda c: lambda x, y, data: jnp.sum((y - c) ** 2),
    "closure of a closure": lambda c: (lambda inner: lambda x, y: inner(y))(lambda y: jnp.sum((y - c) ** 2)),
    "nested function": lambda c: lambda x, y: (lambda: jnp.sum((y - c) ** 2))(),
    "default": lambda c: lambda x, y, data=None, c=c: jnp.sum((y - c) ** 2),
    "partial": lambda c: partial(lambda x, y, c: jnp.sum((y - c) ** 2), c=c),
    "jit": lambda c: jax.jit(lambda x, y: jnp.sum((y - c) ** 2)),
    "list": lambda c: (lambda many: lambda x, y: jnp.sum((y - many[1]) ** 2))([0.0, c]),
    "dict": lambda c: (lambda many: lambda x, y: jnp.sum((y - many["c"]) ** 2))({"c": c}),
    "static field": lambda c: Loss(int(c)),
}


@pytest.mark.parametrize("name", CLOSURES)
def test_a_changed_constant_changes_the_fingerprint(name: str) -> None:
    make = CLOSURES[name]
    assert loss_with(make, 1.0) == loss_with(make, 1.0)
    assert loss_with(make, 1.0) != loss_with(make, 2.0)
    if name != "static field":
        one = jnp.arange(3.0)
        assert loss_with(make, one) == loss_with(make, jnp.arange(3.0))
        assert loss_with(make, one) != loss_with(make, one.at[1].add(1e-15))
        assert loss_with(make, one) != loss_with(make, one.astype("float32"))
        assert loss_with(make, one.astype("bfloat16")) != loss_with(make, 2 * one.astype("bfloat16"))


def test_globals_and_helpers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [loss_with(lambda _, f=f: f, None) for f in (shifted, helped)]
    assert before == [loss_with(lambda _, f=f: f, None) for f in (shifted, helped)]
    monkeypatch.setattr(sys.modules[__name__], "SHIFT", 2.0)
    monkeypatch.setattr(sys.modules[__name__], "helper", shifted_helper)
    after = [loss_with(lambda _, f=f: f, None) for f in (shifted, helped)]
    assert after[0] != before[0]
    assert after[1] != before[1]


def shifted_helper(y: Any) -> Any:
    return jnp.sum(y**4)


def test_a_function_that_refers_to_itself_has_a_fingerprint() -> None:
    def power(x: Any, y: Any, data: Any = None, depth: int = 2) -> Any:
        return power(x, y * y, data, depth - 1) if depth else jnp.sum(y)

    assert loss_with(lambda _: power, None) == loss_with(lambda _: power, None)


def test_extra_fields_of_a_subclass_count() -> None:
    class Weighted(Problem):
        weight: Any = 1.0

    def marks(weight: float) -> dict[str, str]:
        return fingerprint(Weighted(shifted, shifted, L1(0.1), None, jnp.asarray(weight)), SOLVER)

    assert marks(1.0) == marks(1.0)
    assert {name for name, digest in marks(1.0).items() if digest != marks(2.0)[name]} == {"weight"}


def test_random_keys_in_the_data_have_a_fingerprint() -> None:
    def marks(seed: int) -> str:
        return fingerprint(Problem(shifted, shifted, data={"key": jax.random.key(seed)}), SOLVER)["data"]

    assert marks(0) == marks(0) != marks(1)


def test_the_preconditioner_and_its_like_have_no_address_in_the_fingerprint() -> None:
    def make() -> dict[str, str]:
        solver = ProxBiO(AID(GradientDescent(0.1, 5), CG(preconditioner=lambda r: 2 * r)), 0.1)
        return fingerprint(CASE.problem, solver)

    assert make() == make()


def test_fingerprints_are_the_same_in_another_process() -> None:
    code = "import json, child; print(json.dumps(child.checkpoint.fingerprint(child.PROBLEM, child.SOLVER)))"
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == fingerprint(child.PROBLEM, child.SOLVER)


def test_a_run_continues_under_another_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which compiles the same source to other code; data are compared all the same."""

    def upper(x: Any, y: Any) -> Any:
        return jnp.sum((y - SHIFT) ** 2)

    def marks() -> dict[str, str]:
        return fingerprint(Problem(upper, CASE.problem.lower, CASE.problem.regularizer), SOLVER)

    like, path = SOLVER.init(CASE.problem, CASE.x0, CASE.y0), folder / "step-0000000030.safetensors"
    snapshot = checkpoint.load(folder, like, fingerprint(CASE.problem, SOLVER))
    assert snapshot is not None
    checkpoint.save(folder, snapshot._replace(step=30), marks(), keep=3)
    upper.__code__ = upper.__code__.replace(co_consts=(*upper.__code__.co_consts, "of another compiler"))
    with pytest.raises(CheckpointError, match=r"its upper differs"):
        checkpoint.load(path, like, marks())
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    assert checkpoint.load(path, like, marks()) is not None
    monkeypatch.setattr(sys.modules[__name__], "SHIFT", 2.0)
    with pytest.raises(CheckpointError, match=r"its upper differs"):
        checkpoint.load(path, like, marks())


# --- kill -9 ----------------------------------------------------------------------------------------------------------


def run_child(folder: Path, *how: str, until: int | None = None) -> int:
    """A child that is killed once it has reported `until` steps, or that kills itself: its exit status."""
    command = [sys.executable, child.__file__, str(folder), str(10**9 if until else 500), *how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until is not None and int(line) >= until:
                process.kill()
    return process.returncode


def assert_resumes_like_a_straight_run(folder: Path) -> None:
    step = int(checkpoints(folder)[0].stem.removeprefix("step-"))
    resumed = child.solve(step + 15, resume=folder, callbacks=[Checkpoint(folder)])
    straight = child.solve(step + 15)
    assert bits(resumed) == bits(straight)
    assert resumed.counts.as_dict() == straight.counts.as_dict()
    assert [row["objective"] for row in resumed.history] == [row["objective"] for row in straight.history]
    assert names(folder) == [file_of(step + more) for more in (5, 10, 15)]  # and no leftovers


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    for until in (10, 95):  # the second child goes on where the first was killed
        assert run_child(tmp_path, until=until) == -signal.SIGKILL
        assert 1 <= len(checkpoints(tmp_path)) <= 4
    assert_resumes_like_a_straight_run(tmp_path)


@pytest.mark.parametrize("where", ["bytes", "before rename", "after rename"])
def test_killed_while_it_writes(where: str, tmp_path: Path) -> None:
    assert run_child(tmp_path, where, "5") == -signal.SIGKILL
    newest = 25 if where == "after rename" else 20
    assert checkpoints(tmp_path)[0].name == file_of(newest)
    assert (len(list(tmp_path.glob(".step-*.tmp"))) == 1) == (where != "after rename")
    assert_resumes_like_a_straight_run(tmp_path)


@pytest.mark.slow
@pytest.mark.hours
def test_killed_again_and_again(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for _ in range(12):
        newest = checkpoints(tmp_path)
        step = int(newest[0].stem.removeprefix("step-")) if newest else 0
        assert run_child(tmp_path, until=step + int(draw.integers(1, 400))) == -signal.SIGKILL
    for number in range(6):
        run_child(tmp_path, ["bytes", "before rename", "after rename"][number % 3], str(draw.integers(1, 9)))
    assert_resumes_like_a_straight_run(tmp_path)
