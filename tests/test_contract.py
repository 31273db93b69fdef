"""What every solver must do. A solver gets all of this from one row of `SOLVERS` in `cases.py`."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import SOLVERS, Follow, SolverRow, flat, follow
from proxbi import L1, Checkpoint, Problem, Result, Status, Zero, _loop, minimize, run
from proxbi.result import Snapshot

BETA = 0.5
STRENGTH = 0.1


def _marked(row: SolverRow) -> Any:
    """The rows with a lower regularizer are those above once more: they wait for the longer suites."""
    repeated = row.repeated or row.lower_regularizer is not None
    slow = [pytest.mark.slow] if repeated or row.combined else []
    return pytest.param(row, id=str(row), marks=[*slow, pytest.mark.hours] if repeated else slow)


@pytest.fixture(scope="module", params=map(_marked, SOLVERS))
def row(request: pytest.FixtureRequest) -> SolverRow:
    """For a module: all tests of a solver run in turn, on programs that are compiled once."""
    _loop.advance.forget()  # so that none is forgotten on the way, as the oldest are
    return request.param


@pytest.fixture(scope="module")
def compiled_run(row: SolverRow) -> Any:
    """7 steps from x0 on the problem with the targets d, as one program."""
    case = case_for(row)

    def steps(beta: Any, x0: Any, d: Any) -> Any:
        problem = eqx.tree_at(lambda p: p.data["d"], case.problem, d)
        return run(problem, row.make(beta), x0, case.y0, steps=7)

    return jax.jit(steps)


def case_for(row: SolverRow, **options: Any) -> Follow:
    return follow(STRENGTH if row.proximal else 0.0, lower_regularizer=row.lower_regularizer, **options)


def solve(row: SolverRow, case: Follow, beta: Any = BETA, **options: Any) -> Result:
    return minimize(case.problem, case.x0, case.y0, row.make(beta), **options)


def same_bits(a: Any, b: Any) -> bool:
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.asarray(p).tobytes() == np.asarray(q).tobytes() for p, q in zip(left, right, strict=True))


def without_time(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in history]


@pytest.mark.parametrize("trees", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["vectors", "dicts"])
def test_it_converges_to_the_point_it_should(row: SolverRow, trees: bool) -> None:
    case = case_for(row, trees=trees)
    result = solve(row, case, steps=row.steps)
    expected = case.minimiser(None if row.pull is None else row.pull(case.a))
    np.testing.assert_allclose(flat(result.x), expected, atol=1e-8)
    np.testing.assert_allclose(flat(result.y), expected, atol=1e-7)
    assert jax.tree.structure((result.x, result.y)) == jax.tree.structure((case.x0, case.y0))
    assert {leaf.dtype for leaf in jax.tree.leaves((result.x, result.y))} == {np.dtype("float64")}
    assert result.status is Status.STEPS or (not row.tuned and result.status is Status.PRECISION)
    assert result.stationarity < 1e-7
    assert result.lower_residual < 1e-7
    if row.pull is not None:  # the bias that the row declares is there
        assert np.linalg.norm(expected - case.minimiser()) > 1e-2


def test_the_reference_is_soft_thresholding() -> None:
    case = follow(STRENGTH)
    np.testing.assert_allclose(case.minimiser(), np.sign(case.d) * np.maximum(np.abs(case.d) - STRENGTH, 0), atol=1e-12)


# --- counts -----------------------------------------------------------------------------------------------------------

SEEN: Counter[str] = Counter()


def counted(name: str, function: Any) -> Any:
    def call(*arguments: Any) -> Any:
        SEEN[name] += 1
        return function(*arguments)

    return call


class SpyProblem(Problem):
    """Counts the calls of every oracle, and of the maps that `hvp` and `cross` return."""

    def value_upper(self, x: Any, y: Any) -> Any:
        return counted("value_upper", super().value_upper)(x, y)

    def value_lower(self, x: Any, y: Any) -> Any:
        return counted("value_lower", super().value_lower)(x, y)

    def grad_upper(self, x: Any, y: Any) -> Any:
        return counted("grad_upper", super().grad_upper)(x, y)

    def value_and_grad_upper(self, x: Any, y: Any) -> Any:  # one call, as the value comes with the gradient
        return super().value_upper(x, y), self.grad_upper(x, y)

    def grad_lower(self, x: Any, y: Any) -> Any:
        return counted("grad_lower", super().grad_lower)(x, y)

    def value_and_grad_lower(self, x: Any, y: Any) -> Any:
        return super().value_lower(x, y), self.grad_lower(x, y)

    def grad_lower_x(self, x: Any, y: Any) -> Any:
        return counted("grad_lower_x", super().grad_lower_x)(x, y)

    def hvp(self, x: Any, y: Any) -> Any:
        return counted("hvp", super().hvp(x, y))

    def cross(self, x: Any, y: Any) -> Any:
        return counted("cross", super().cross(x, y))

    def lower_prox(self, x: Any, y: Any, step: Any) -> Any:
        if self.lower_regularizer is None:
            return super().lower_prox(x, y, step)
        return counted("prox_lower", super().lower_prox)(x, y, step)


class SpyL1(L1):
    def prox(self, x: Any, step: Any) -> Any:
        return counted("prox", super().prox)(x, step)


class SpyZero(Zero):
    def prox(self, x: Any, step: Any) -> Any:
        return counted("prox", super().prox)(x, step)


def test_declared_counts_are_observed_calls_and_eager_is_jit(row: SolverRow) -> None:
    case, solver = case_for(row), row.make(BETA)
    spy_h = SpyL1(STRENGTH) if row.proximal else SpyZero()
    objectives, r = (case.problem.upper, case.problem.lower), case.problem.lower_regularizer
    spy = SpyProblem(*objectives, spy_h, case.problem.data, lower_regularizer=r)
    state, compiled = (solve(row, case, steps=steps).state.state for steps in (1, 2))
    # Without jit an IntEnum is no weak type: that dtypes are not mixed is checked wherever steps are compiled.
    with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
        SEEN.clear()
        eager, info = solver.step(spy, state, jax.random.key(0))  # the second step, which starts warm
    declared = {name: count for name, count in info.counts.as_dict().items() if count}
    assert row.modelled or declared == dict(SEEN)  # of dense linear algebra the counts are a model: see test_linear.py
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


# --- compilation ------------------------------------------------------------------------------------------------------


def test_changing_numbers_compiles_nothing(row: SolverRow) -> None:
    case = case_for(row)
    solve(row, case, steps=13)
    compiled = _loop.advance.programs
    other = case_for(row, seed=1).problem
    if row.proximal:
        other = eqx.tree_at(lambda p: p.regularizer, other, L1(0.2))
    x0, y0 = case.x0 + 1, np.asarray(case.y0) - 1  # a NumPy array serves as well
    minimize(other, x0, y0, row.make(0.4), steps=7, every=3, tol=1e-30)
    assert _loop.advance.programs == compiled


def test_vmap_over_step_sizes_starts_and_data_is_a_loop(compiled_run: Any) -> None:
    starts = np.random.default_rng(0).normal(size=(3, 4))
    betas = np.array([0.1, 0.3, 0.5])
    targets = np.random.default_rng(1).normal(size=(3, 4))

    def last(made: Any) -> Any:
        state, info = made
        return state.x, state.y, info.stationarity

    together = last(jax.jit(jax.vmap(compiled_run))(betas, starts, targets))
    for k in range(3):
        for a, b in zip(together, last(compiled_run(betas[k], starts[k], targets[k])), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-9, atol=1e-9)
    assert not np.allclose(together[0][0], together[0][1])


def test_run_makes_the_iterates_of_minimize(row: SolverRow, compiled_run: Any) -> None:
    case = case_for(row)
    result = solve(row, case, steps=7, every=3)
    state, infos = compiled_run(np.float64(BETA), case.x0, case.problem.data["d"])
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(result.state.state), strict=True):
        # Two programs, one optimised and one not: they round differently, and pairs make more of it.
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    ends = [line["step"] for line in result.history]
    assert [step for step in ends if step > 1] == [3, 6, 7]
    chunk_ends = [line["stationarity"] for line in result.history]
    np.testing.assert_allclose(chunk_ends, infos.stationarity[np.array(ends) - 1], rtol=1e-7)
    counted = result.state.counts
    assert counted.as_dict() == {name: int(np.sum(count)) for name, count in vars(infos.counts).items()}
    assert counted.total == sum(counted.as_dict().values())
    assert result.history[-1]["hvp"] == counted.hvp


def test_the_certificate_is_counted_on_top(row: SolverRow) -> None:
    case, solver = case_for(row), row.make(BETA)
    result = solve(row, case, steps=3)
    certify = jax.jit(lambda state: solver.certify(case.problem, state, jax.random.fold_in(jax.random.key(0), 3)))
    certificate = certify(result.state.state)
    known = {name: count - result.state.counts.as_dict()[name] for name, count in result.counts.as_dict().items()}
    assert known == certificate.counts.as_dict()
    assert sum(known.values()) > 0
    np.testing.assert_allclose(result.stationarity, certificate.stationarity, rtol=1e-6, atol=1e-12)


def test_float32_is_kept_whatever_the_step_size_is(row: SolverRow, request: pytest.FixtureRequest) -> None:
    if row.name == "penalty":
        reason = "open in issue 10: it ends as PRECISION with an error of 3e-5"
        request.applymarker(pytest.mark.xfail(strict=False, reason=reason))
    case = case_for(row, dtype=jnp.float32)
    result = solve(row, case, beta=np.float64(BETA), steps=row.steps)
    floats = [leaf for leaf in jax.tree.leaves(result.state.state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert {leaf.dtype for leaf in floats} == {np.dtype("float32")}
    expected = case.minimiser(None if row.pull is None else row.pull(case.a))
    np.testing.assert_allclose(result.x, expected, atol=1e-5)


# --- resumption -------------------------------------------------------------------------------------------------------


class Halved(NamedTuple):
    """A run that never stopped, and its first part with the folder of its checkpoints."""

    straight: Result
    first: Result
    folder: Path


@pytest.fixture(scope="module")
def halved(row: SolverRow, tmp_path_factory: pytest.TempPathFactory) -> Halved:
    case, folder = case_for(row), tmp_path_factory.mktemp("checkpoints")
    first = solve(row, case, steps=10, every=5, callbacks=[Checkpoint(folder)])
    return Halved(solve(row, case, steps=17, every=5), first, folder)


@pytest.mark.parametrize("source", ["result", "snapshot", "folder", "file"])
def test_a_resumed_run_is_the_run_that_never_stopped(row: SolverRow, source: str, halved: Halved) -> None:
    case, (straight, first, folder) = case_for(row), halved
    resume = {
        "result": first,
        "snapshot": first.state,
        "folder": folder,
        "file": str(max(folder.glob("step-*.safetensors"))),
    }[source]
    second = solve(row, case, steps=17, every=5, resume=resume)
    assert same_bits(second.state.state, straight.state.state)
    assert without_time(second.history) == without_time(straight.history)
    assert second.counts.as_dict() == straight.counts.as_dict()
    assert (second.stationarity, second.status) == (straight.stationarity, straight.status)
    # where the chunks end changes nothing
    assert same_bits(solve(row, case, steps=17, every=4, resume=resume).state.state, straight.state.state)


def test_resuming_a_finished_run_changes_nothing(row: SolverRow, halved: Halved) -> None:
    case, first = case_for(row), halved.first
    again = solve(row, case, steps=10, resume=first)
    assert isinstance(again.state, Snapshot)
    assert same_bits(again.state.state, first.state.state)
    assert again.counts.as_dict() == first.counts.as_dict()
    assert again.history == first.history
