"""`minimize_many`: the runs of `minimize`, together."""

import os
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import (
    L1,
    Bounds,
    Box,
    Problem,
    SolveError,
    Status,
    _driver,
    minimize,
    minimize_many,
    paper_solver,
    sweep,
)
from proxbi.analytic import ridge_hyperparameters, spectral_quadratic


def upper(x: Any, y: Any) -> Any:
    """Minima near -1 and 1, of which that near -1 is the lower one."""
    return jnp.sum((y**2 - 1) ** 2 + 0.3 * y)


def lower(x: Any, y: Any) -> Any:
    """With a domain: x < 10."""
    return jnp.sum((y - x) ** 2) + 0 * jnp.sum(jnp.log(10 - x))


PROBLEM = Problem(upper, lower, Box(-20.0, 20.0))
STARTS = np.array([[1.2], [0.5], [-0.5]])


def alone(problem: Problem, x0s: Any, y0s: Any, *arguments: Any, **options: Any) -> list[Any]:
    return [
        minimize(problem, *jax.tree.map(lambda leaf, k=k: leaf[k], (x0s, y0s)), *arguments, **options)
        for k in range(len(x0s))
    ]


def starts(made: Any) -> tuple[np.ndarray, np.ndarray]:
    moves = np.random.default_rng(0).uniform(-0.5, 0.5, size=(3, len(made.x0)))
    return made.x0[None] + moves, np.stack([made.y0] * 3)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(ridge_hyperparameters(100.0), id="Box", marks=[pytest.mark.slow, pytest.mark.hours]),
        pytest.param(spectral_quadratic(10.0), id="L1", marks=[pytest.mark.slow, pytest.mark.hours]),
    ],
)
def test_they_are_separate_runs(made: Any) -> None:
    x0s, y0s = starts(made)
    found = minimize_many(made.problem, x0s, y0s)
    for one, other in zip(found.results, alone(made.problem, x0s, y0s), strict=True):
        assert one.status is other.status is Status.CONVERGED
        assert (one.steps, one.counts.as_dict()) == (other.steps, other.counts.as_dict())
        np.testing.assert_allclose(one.x, other.x, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one.y, other.y, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one.objective, other.objective, rtol=1e-9)
        assert [row["step"] for row in one.history] == [row["step"] for row in other.history]
    assert found.best.objective == min(result.objective for result in found.results)
    on = minimize(made.problem, resume=found.best, steps=found.best.steps + 1, rtol=1e-12, throw=False)
    assert on.objective <= found.best.objective + 1e-12


def test_fixed_steps_and_tolerances_too() -> None:
    made = spectral_quadratic(10.0)
    x0s, y0s = starts(made)
    solver = paper_solver("proximal BiO-AID", alpha=0.5, beta=0.5, T=5)
    for options in ({"steps": 25}, {"steps": 300, "rtol": 0.1}, {"steps": 300, "tol": 0.05}):
        found = minimize_many(made.problem, x0s, y0s, solver, **options)
        for one, other in zip(found.results, alone(made.problem, x0s, y0s, solver, **options), strict=True):
            assert one.status is other.status
            assert (one.steps, one.counts.as_dict()) == (other.steps, other.counts.as_dict())
            np.testing.assert_allclose(one.x, other.x, rtol=1e-8)
            np.testing.assert_allclose(one.stationarity, other.stationarity, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_the_best_of_several_minima() -> None:
    found = minimize_many(PROBLEM, STARTS, 0 * STARTS)
    assert found.statuses == [Status.CONVERGED] * 3
    np.testing.assert_allclose([result.x[0] for result in found.results], [0.96, 0.96, -1.035], atol=5e-3)
    assert found.best is found.results[2]
    table = str(found).splitlines()
    assert table[0] == f"3 runs: 3 CONVERGED; best: run 2, objective {found.best.objective:.6g}."
    assert len(table) == 5


@pytest.mark.slow
def test_bad_starts_have_their_own_status_and_disturb_no_other() -> None:
    x0s = np.array([[15.0], [1.2], [30.0]])  # the first is outside of lower's domain, the last of the regularizer's
    found = minimize_many(PROBLEM, x0s, 0 * x0s)
    assert found.statuses == [Status.NONFINITE_START, Status.CONVERGED, Status.INFEASIBLE_START]
    other = minimize_many(PROBLEM, STARTS, 0 * STARTS).results[0]
    np.testing.assert_array_equal(found.best.x, other.x)
    assert found.best is found.results[1]
    assert found.best.counts.as_dict() == other.counts.as_dict()
    assert "1 NONFINITE_START, 1 CONVERGED, 1 INFEASIBLE_START; best: run 1" in str(found)
    np.testing.assert_array_equal(found.results[2].x, x0s[2])


def test_where_all_starts_are_bad_it_raises() -> None:
    x0s = np.array([[15.0], [30.0], [16.0]])
    with pytest.raises(SolveError, match="infinite or NaN"):
        minimize_many(PROBLEM, x0s, 0 * x0s)
    found = minimize_many(PROBLEM, x0s, 0 * x0s, throw=False)
    assert all(status.failed for status in found.statuses)
    assert found.best in found.results


@pytest.mark.slow
def test_a_run_that_has_ended_is_frozen() -> None:
    x0s = np.array([[-1.035], [1.2], [0.1]])
    found = minimize_many(PROBLEM, x0s, 0 * x0s, tol=1e-2)
    first = minimize(PROBLEM, x0s[0], 0 * x0s[0], tol=1e-2)
    assert found.results[0].steps == first.steps < found.results[2].steps
    np.testing.assert_allclose(found.results[0].x, first.x, rtol=1e-12)


def test_too_few_steps() -> None:
    found = minimize_many(PROBLEM, STARTS, 0 * STARTS, steps=2)
    assert found.statuses == [Status.STEPS] * 3
    assert [result.steps for result in found.results] == [2] * 3


@pytest.mark.slow
def test_pytrees_scalars_and_float32() -> None:
    problem = Problem(
        lambda x, y: jnp.sum((y["a"] - 2) ** 2) + x["own"] ** 2,
        lambda x, y: jnp.sum((y["a"] - x["to"] - x["own"]) ** 2),
        L1(0.1),
    )
    x0s = {"to": np.zeros((2, 3), np.float32), "own": np.array([1, -1], np.float32)}
    found = minimize_many(problem, x0s, {"a": np.zeros((2, 3), np.float32)}, rtol=1e-3)
    for result in found.results:
        assert result.converged
        assert result.x["own"].shape == ()
        assert result.x["to"].dtype == jnp.float32


def test_bounds_are_guaranteed() -> None:
    # g = (y - x)^2, and |f_yy| = |12 y^2 - 4| <= 44 where |y| <= 2
    found = minimize_many(PROBLEM, STARTS, 0 * STARTS, tol=1e-2, bounds=Bounds(mu=2.0, cross=2.0, f_yy=44.0))
    for result in found.results:
        assert result.guaranteed
        assert abs(4 * result.x[0] * (result.x[0] ** 2 - 1) + 0.3) <= result.stationarity <= 1e-2


def test_an_interruption_returns_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pressed:
        def __enter__(self) -> Any:
            return lambda: True

        def __exit__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(_driver, "interruptible", Pressed)
    found = minimize_many(PROBLEM, STARTS, 0 * STARTS)
    assert found.statuses == [Status.INTERRUPTED] * 3
    assert [result.steps for result in found.results] == [1] * 3


@pytest.mark.parametrize(
    ("x0s", "y0s", "message"),
    [
        (STARTS, np.zeros((4, 1)), r"x0s has 3 starts, but y0s has 4 \(shape \(4, 1\)\)"),
        (STARTS, np.float64(0.0), "y0s is a single number"),
        ({"a": STARTS, "b": np.zeros((2, 3))}, STARTS, r"x0s\['a'\] has 3 starts, but x0s\['b'\] has 2"),
        (STARTS * np.nan, STARTS, "x0s has 3 NaN"),
        (STARTS.astype(int), STARTS, "x0s must be floating point"),
        (None, STARTS, "x0s is an empty pytree"),
    ],
)
def test_starts_that_do_not_fit_are_refused(x0s: Any, y0s: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        minimize_many(PROBLEM, x0s, y0s)


# --- sweeps -----------------------------------------------------------------------------------------------------------


def solvers(*betas: float) -> list[Any]:
    return [paper_solver("proximal BiO-AID", alpha=0.3, beta=beta, T=3, cg_steps=3) for beta in betas]


@pytest.mark.slow
def test_a_sweep_is_its_runs_one_by_one() -> None:
    made = ridge_hyperparameters(100.0)
    longer = paper_solver("proximal BiO-AID", alpha=0.3, beta=0.3, T=5, cg_steps=3)
    several = [*solvers(0.1, 0.5), longer, *solvers(0.2)]  # two programs: one has another number of inner steps
    found = sweep(made.problem, several, made.x0, made.y0, steps=12)
    for one, solver in zip(found.results, several, strict=True):
        other = minimize(made.problem, made.x0, made.y0, solver, steps=12)
        assert (one.status, one.steps, one.counts.as_dict()) == (other.status, other.steps, other.counts.as_dict())
        np.testing.assert_allclose(one.x, other.x, rtol=1e-9)
    assert found.best.objective == min(result.objective for result in found.results)
    table = found.to_frame()
    np.testing.assert_allclose(table["step_size"], [0.1, 0.5, 0.3, 0.2])
    assert list(table["status"]) == ["STEPS"] * 4
    assert "hypergradient.lower.step_size" not in table  # the same in all


@pytest.mark.slow
def test_a_sweep_in_batches_and_in_a_loop_is_the_same() -> None:
    made = spectral_quadratic(10.0)
    arguments = made.problem, solvers(0.1, 0.2, 0.4), made.x0, made.y0
    together = sweep(*arguments, steps=4)
    for options in ({"batch": 2}, {"engine": "loop"}):
        other = sweep(*arguments, steps=4, **options)
        for one, same in zip(together.results, other.results, strict=True):
            np.testing.assert_allclose(one.x, same.x, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["joblib", "dask"])
def test_a_sweep_in_other_processes_is_the_same(engine: Any) -> None:
    """Bit for bit, in double precision, with functions that only this process knows by name."""
    pytest.importorskip("joblib" if engine == "joblib" else "distributed", reason="pip install 'proxbi[dask]'")
    shift = jnp.array([1.0, 1 / 3])
    made = Problem(lambda x, y: jnp.sum((y - shift) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(0.1))
    arguments = made, solvers(0.1, 0.2, 0.4), jnp.zeros(2), jnp.zeros(2)
    here, there = sweep(*arguments, steps=4, engine="loop"), sweep(*arguments, steps=4, engine=engine, workers=2)
    for one, same in zip(here.results, there.results, strict=True):
        assert np.asarray(same.x).dtype == np.float64
        assert np.array_equal(one.x, same.x)
        assert (one.status, one.counts.as_dict()) == (same.status, same.counts.as_dict())
    assert here.settings == there.settings


def test_what_cannot_be_sent_to_other_processes_is_named() -> None:
    pytest.importorskip("joblib", reason="pip install 'proxbi[dask]'")
    lock = threading.Lock()

    def locked(x: Any, y: Any) -> Any:
        assert lock is not None
        return jnp.sum((y - 1) ** 2)

    given = Problem(locked, lambda x, y: jnp.sum((y - x) ** 2)), solvers(0.1), jnp.zeros(2), jnp.zeros(2)
    with pytest.raises(TypeError, match=r"problem cannot be sent to other processes: cannot pickle '_thread\.lock'"):
        sweep(*given, engine="joblib", workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "said"), [("joblib", "a worker process died"), ("dask", r"^solvers\[0\] cannot be")]
)
def test_a_worker_of_a_sweep_that_dies_is_named(engine: Any, said: str) -> None:
    """In the place of a page of joblib's, or of the bytes that were sent."""
    pytest.importorskip("joblib" if engine == "joblib" else "distributed", reason="pip install 'proxbi[dask]'")
    import dask

    here = os.getpid()

    def deadly(x: Any, y: Any) -> Any:
        if os.getpid() != here:
            os._exit(9)
        return jnp.sum((y - 1) ** 2)

    given = Problem(deadly, lambda x, y: jnp.sum((y - x) ** 2)), solvers(0.1), jnp.zeros(2), jnp.zeros(2)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), pytest.raises(OSError, match=said):
        sweep(*given, engine=engine, workers=2)


@pytest.mark.parametrize(
    ("several", "options", "message"),
    [
        ([], {}, "solvers must contain at least one solver"),
        ([3], {}, "solver must be a proxbi Solver"),
        (solvers(0.1), {"engine": "pmap"}, 'engine must be "vmap", "loop", "joblib" or "dask"'),
        (solvers(0.1), {"scheduler": "tcp://x:1"}, 'scheduler is for engine="dask"'),
        (solvers(0.1), {"engine": "joblib", "workers": 0}, "workers must be an integer > 0, got 0"),
        (solvers(0.1), {"batch": 0}, "batch must be an integer > 0"),
    ],
)
def test_bad_arguments_of_a_sweep_are_named(several: Any, options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        sweep(PROBLEM, several, STARTS[0], STARTS[0], **options)
