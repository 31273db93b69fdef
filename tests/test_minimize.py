"""`minimize`: what it refuses, how runs end, what callbacks may do, and Ctrl-C."""

import csv
import io
import os
import pickle
import pty
import re
import signal
import subprocess
import sys
import threading
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

import child
import proxbi as pb
from cases import follow
from proxbi import (
    AID,
    CG,
    ITD,
    L1,
    AdaptiveProxBiO,
    Callback,
    Checkpoint,
    Direct,
    GradientDescent,
    HistoryRow,
    OracleBudget,
    Problem,
    Progress,
    ProxBiO,
    Record,
    Result,
    SolveError,
    Status,
    StopBelow,
    TimeLimit,
    _loop,
    _validate,
    minimize,
    paper_solver,
)
from proxbi.solvers.skeleton import SkeletonState

SOLVER = paper_solver("proximal BiO-AID", alpha=1.0, beta=0.5, T=5)
CASE = follow(0.1)


def solve(**options: Any) -> Result:
    return minimize(CASE.problem, CASE.x0, CASE.y0, SOLVER, **{"steps": 20} | options)


# --- bad input --------------------------------------------------------------------------------------------------------


def data(**changes: Any) -> Problem:
    return eqx.tree_at(lambda p: p.data, CASE.problem, {**CASE.problem.data, **changes})


def objectives(upper: Any = None, lower: Any = None, h: Any = None) -> Problem:
    return Problem(upper or (lambda x, y: jnp.sum(y**2)), lower or (lambda x, y: jnp.sum((y - x) ** 2)), h or pb.Zero())


NAN3 = np.array([1.0, 2.0, np.nan, 4.0])
CALL = {"problem": CASE.problem, "solver": SOLVER, "x0": CASE.x0, "y0": CASE.y0, "steps": 20}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "x0 of integers": ({"x0": np.arange(4)}, "x0 must be floating point"),
    "y0 of integers": ({"y0": np.arange(4)}, "y0 must be floating point"),
    "x0 of booleans": ({"x0": np.ones(4, bool)}, "x0 must be floating point"),
    "complex y0": ({"y0": np.ones(4, complex)}, "y0 must be floating point"),
    "x0 of text": ({"x0": "zero"}, "x0 must be a floating point array, got str"),
    "x0 of objects": ({"x0": np.array([1.0, None])}, "x0 must be a floating point array"),
    "no x0": ({"x0": None}, "x0 is required: the point to start from"),
    "no y0": ({"y0": None}, "y0 is required: the point to start from"),
    "a solver given second": (
        {"x0": SOLVER, "y0": CASE.x0, "solver": CASE.y0},
        r"the solver comes after the starting point: minimize\(problem, x0, y0, solver\)",
    ),
    "no x0, and a folder": ({"x0": None, "resume": "/nowhere"}, "x0 is required.*resumed from a Result"),
    "x0 and y0 of two dtypes": (
        {"x0": np.ones(4, "float32")},
        "x0 is float32, but y0 is float64: give all of x0 and y0 one dtype",
    ),
    "leaves of two dtypes": (
        {"y0": {"a": np.ones(2), "b": np.ones(2, "float32")}},
        r"x0 is float64, but y0\['b'\] is float32",
    ),
    "bfloat16": ({"x0": jnp.ones(4, jnp.bfloat16)}, "x0 is bfloat16: solvers need float32 or float64"),
    "float16": ({"x0": np.ones(4, np.float16), "y0": np.ones(4, np.float16)}, "x0 is float16: solvers need float32"),
    "y0 an empty dict": ({"y0": {}}, "y0 is an empty pytree"),
    "x0 without entries": ({"x0": np.ones(0)}, r"x0 is empty: it has shape \(0,\)"),
    "NaN in x0": ({"x0": NAN3}, r"x0 has 1 NaN .* at index \(2,\)"),
    "NaN in a leaf of x0": ({"x0": {"a": np.ones(1), "b": NAN3[:3]}}, r"x0\['b'\] has 1 NaN"),
    "infinity in y0": ({"y0": np.array([1.0, np.inf, -np.inf, 0.0])}, r"y0 has 2 NaN or infinite .* index \(1,\)"),
    "NaN in data": ({"problem": data(d=NAN3)}, r"data\['d'\] has 1 NaN"),
    "infinity in data": ({"problem": data(A=np.full((4, 4), np.inf))}, r"data\['A'\] has 16 NaN"),
    "text in data": ({"problem": data(name="mnist")}, r"data\['name'\] must be a numeric array, got str"),
    "x0 of a wrong shape": ({"x0": np.ones(3)}, "lower fails on the given x0, y0 and data"),
    "y0 of a wrong shape": ({"y0": np.ones((5,))}, "upper fails on the given x0, y0 and data"),
    "data of a wrong shape": ({"problem": data(A=np.ones((3, 3)))}, "lower fails on the given x0, y0 and data"),
    "a missing column of data": ({"problem": objectives(lambda x, y, data: data["z"])}, "upper fails on the given"),
    "upper not a scalar": ({"problem": objectives(lambda x, y: y**2)}, r"upper must return a scalar, .*shape \(4,\)"),
    "lower not a scalar": ({"problem": objectives(lower=lambda x, y: (y - x) ** 2)}, "lower must return a scalar"),
    "upper a pair": ({"problem": objectives(lambda x, y: (jnp.sum(y), y))}, "upper must return a scalar, got tuple"),
    "upper nothing": ({"problem": objectives(lambda x, y: None)}, "upper must return a scalar, got NoneType"),
    "upper an integer": ({"problem": objectives(lambda x, y: jnp.sum(y > 0))}, "upper must return a floating point"),
    "lower ignores y": ({"problem": objectives(lower=lambda x, y: jnp.sum(x**2))}, "lower ignores y.*strongly convex"),
    "lower ignores a leaf of y": (
        {"problem": objectives(lambda x, y: y[0] @ x, lambda x, y: jnp.sum((y[0] - x) ** 2)), "y0": (np.ones(4), 1.0)},
        r"lower ignores y\[1\]",
    ),
    "nothing depends on x": (
        {"problem": objectives(lambda x, y: jnp.sum(y), lambda x, y: jnp.sum(y**2))},
        "neither upper nor lower depends on x",
    ),
    "a regularizer of another shape": (
        {"problem": objectives(h=L1(np.ones(3)))},
        "regularizer does not fit x0",
    ),
    "a plain solver and a regularizer": (
        {"solver": paper_solver("BiO-AID", alpha=1.0, beta=0.5, T=5)},
        "regularizer is L1, but this solver has proximal=False",
    ),
    "a problem that is none": ({"problem": lambda x, y: 0.0}, "problem must be a proxbi Problem"),
    "a solver that is none": ({"solver": AID(GradientDescent(0.1, 5))}, "solver must be a proxbi Solver"),
    "no steps": ({"steps": 0}, "steps must be an integer > 0, got 0"),
    "negative steps": ({"steps": -5}, "steps"),
    "steps not whole": ({"steps": 10.0}, "steps must be an integer"),
    "every 0": ({"every": 0}, "every must be an integer > 0"),
    "a negative tol": ({"tol": -1e-3}, "tol must be finite and > 0"),
    "tol NaN": ({"tol": float("nan")}, "tol must be finite"),
    "a callback that is none": ({"callbacks": [3]}, "callbacks must be"),
    "a callback class": ({"callbacks": [Progress]}, "callbacks must be"),
    "one callback, not in a list": ({"callbacks": Progress()}, "callbacks must be a list"),
    "resume from a number": ({"resume": 3}, "resume must be"),
    "resume from a file that is not there": ({"resume": "/nowhere/step-1.safetensors"}, "resume"),
    "resume from another shape": (
        {"resume": lambda: minimize(objectives(), np.ones(3), np.ones(3), SOLVER, steps=1)},
        "resume: its state does not match",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_before_anything_is_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, message = BAD[name]
    change = {key: value() if key == "resume" and callable(value) else value for key, value in change.items()}
    compiled: list[Any] = []
    monkeypatch.setattr(_loop, "advance", lambda *arguments: compiled.append(arguments))
    arguments = CALL | change
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        minimize(**arguments)
    assert not compiled


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1(-0.1), "strength must be finite and >= 0"),
        (lambda: pb.NegativeCappedL1(0.1, 0.0), "cap must be finite and > 0"),
        (lambda: pb.NegativeCappedL1(0.1, -1.0), "cap"),
        (lambda: pb.CappedL1(0.1, 0.0), "cap"),
        (lambda: ProxBiO(AID(GradientDescent(0.1, 5)), 0.0), "step_size must be finite and > 0"),
        (lambda: ProxBiO(AID(GradientDescent(0.1, 5)), -1.0), "step_size"),
        (lambda: ProxBiO(AID(GradientDescent(0.1, 5)), float("nan")), "step_size"),
        (lambda: ProxBiO(GradientDescent(0.1, 5), 0.1), "hypergradient must be a Hypergradient"),
        (lambda: ProxBiO(ITD(pb.Exact()), 0.1), "lower must take a fixed number of steps"),
        (lambda: paper_solver("BiO-AIDn", alpha=0.1, beta=0.1, T=5), "name must be one of"),
        (lambda: paper_solver("BiO-AIDm", alpha=0.1, beta=0.1, T=5), "eta must be given"),
        (lambda: paper_solver("BiO-AID", alpha=0.1, beta=0.1, T=5, truncate=2), "truncate must not be given"),
        (lambda: paper_solver("BiO-ITD", alpha=0.1, beta=0.1, T=0), "steps"),
        (lambda: Checkpoint("somewhere", keep=0), "keep"),
        (lambda: Checkpoint("somewhere", every=0), "every"),
        (lambda: TimeLimit(0), "seconds"),
        (lambda: OracleBudget(-1), "total"),
    ],
)
def test_bad_parts_are_refused_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("empty", [None, {}, (), []], ids=str)
def test_data_may_be_empty(empty: Any) -> None:
    problem = Problem(lambda x, y, data: jnp.sum(y**2), lambda x, y, data: jnp.sum((y - x) ** 2), data=empty)
    assert minimize(problem, np.ones(4), np.ones(4), SOLVER, steps=1).status is Status.STEPS


@pytest.mark.parametrize("how", ["plain", "jitted", "as data"])
def test_a_large_array_in_a_closure_is_warned_of(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would become a constant of the program; as data it does not."""
    monkeypatch.setattr(_validate, "_LARGE", 4000)
    held = jnp.arange(1000.0)

    def ridge(y: Any, array: Any) -> Any:
        return 1e-6 * jnp.sum(array) * jnp.sum(y**2)

    inner = jax.jit(lambda y: ridge(y, held)) if how == "jitted" else lambda y: ridge(y, held)
    upper, lower = (lambda x, y, *_: jnp.sum((y - 1) ** 2)), (lambda x, y: jnp.sum((y - x) ** 2))
    if how == "as data":
        problem = Problem(upper, lambda x, y, data: lower(x, y) + ridge(y, data), data=held)
    else:
        problem = Problem(upper, lambda x, y: lower(x, y) + inner(y))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _validate._warn_of_constants(problem, CASE.x0, CASE.y0)
    said = [str(each.message) for each in told]
    assert len(said) == (how != "as data")
    assert all("lower uses 0 MB of arrays that are not arguments of it" in sentence for sentence in said)


def test_an_x_that_its_regularizer_empties_is_noted() -> None:
    """|grad Phi(0)| is 1.5 in one entry and less in the others, so that x is 0 from that strength on."""
    for strength, said in ((8.0, "from about 0.19 * regularizer"), (1.0, None)):
        problem = eqx.tree_at(lambda p: p.regularizer.strength, CASE.problem, jnp.asarray(strength))
        result = minimize(problem, CASE.x0, CASE.y0, SOLVER, steps=100)
        assert bool(jnp.any(result.x != 0)) == (said is None)
        assert [said in note for note in result.notes] == [True] * (said is not None)
        assert said is None or said in result.sentence


def test_numbers_serve_as_starts_and_nothing_is_compiled_twice() -> None:
    """`jnp.asarray(1.0)` is weakly typed: were it kept, the second chunk would be another program."""
    problem = objectives()
    _loop.advance.forget()  # so that no program is forgotten on the way, as the oldest are
    compiled = _loop.advance.programs
    result = minimize(problem, 1.0, 0.5, SOLVER, steps=20, every=5)
    assert _loop.advance.programs == compiled + 1
    assert result.x.dtype == jnp.float64
    minimize(problem, np.float64(1.0), jnp.array(0.5), SOLVER, steps=2)
    assert _loop.advance.programs == compiled + 1


def test_starts_are_left_alone() -> None:
    x0, y0 = np.ones(4), jnp.ones(4)
    minimize(CASE.problem, x0, y0, SOLVER, steps=2)
    np.testing.assert_array_equal(x0, 1)
    np.testing.assert_array_equal(y0, 1)


# --- how runs end -----------------------------------------------------------------------------------------------------


def test_all_steps() -> None:
    result = solve(steps=13, every=5)
    assert result.status is Status.STEPS
    assert result.state.step == 13
    assert [row["step"] for row in result.history] == [5, 10, 13]


def test_converged_means_that_the_returned_x_is_stationary() -> None:
    result = solve(steps=1000, every=7, tol=1e-6)
    assert result.status is Status.CONVERGED
    assert result.state.step < 200
    assert result.stationarity <= 1e-6
    assert np.linalg.norm(result.x - CASE.minimiser()) <= 2e-6  # Phi is 1-strongly convex
    assert solve(steps=result.state.step, every=7, tol=1e-6).status is Status.CONVERGED
    assert solve(steps=3, tol=1e-6).status is Status.STEPS


def test_converged_is_not_said_of_an_x_that_the_run_has_left() -> None:
    """A row tells the stationarity of the iterate before. Here that of step 3 is small, and no other."""

    class Passing(pb.Solver):
        def init(self, problem: Any, x: Any, y: Any) -> Any:
            return SkeletonState(x, y, y, x)

        def step(self, problem: Any, state: Any, key: Any) -> Any:
            stationarity = jnp.where(state.x[0] == 3, 0.0, 1.0)
            return state._replace(x=state.x + 1), pb.Info(stationarity, jnp.zeros(()), None, pb.Counts())

    result = minimize(CASE.problem, CASE.x0, CASE.y0, Passing(), steps=6, every=1, tol=1e-3)
    assert [row["stationarity"] for row in result.history] == [1, 1, 1, 0, 1, 1]
    assert result.status is Status.STEPS
    stopped = minimize(CASE.problem, CASE.x0, CASE.y0, Passing(), steps=3, every=1, tol=1e-3)
    assert (stopped.status, stopped.stationarity) == (Status.CONVERGED, 0)


class Scaleless(ProxBiO):
    """Says nothing of a scale."""

    def step(self, problem: Any, state: Any, key: Any) -> Any:
        state, info = super().step(problem, state, key)
        return state, eqx.tree_at(lambda i: i.relative, info, jnp.full_like(info.relative, jnp.nan))


def test_rtol_refers_to_the_start_where_a_solver_knows_no_scale() -> None:
    solver = Scaleless(AID(GradientDescent(1.0, 5)), 0.1)
    first = minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=1).history[0]
    assert first["relative"] is None
    result = minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=1000, every=50, rtol=1e-3)
    assert result.converged
    assert result.history[0]["stationarity"] == first["stationarity"]  # of x0, though chunks are long
    assert result.stationarity <= 1e-3 * first["stationarity"]
    assert result.history[-2]["stationarity"] > 1e-3 * first["stationarity"]


@pytest.mark.parametrize("steps", [1, 3, 20])
def test_stationarity_is_the_distance_to_the_subdifferential(steps: int) -> None:
    """Phi = |x - d|^2 / 2, so it can be computed; the lower solve here is exact."""
    solver = ProxBiO(AID(pb.Exact(), Direct()), 0.3)
    smooth = eqx.tree_at(lambda p: p.regularizer, CASE.problem, pb.SquaredL2(2.0))
    result = minimize(smooth, CASE.x0, CASE.y0, solver, steps=steps)
    expected = np.linalg.norm(np.asarray(result.x) - CASE.d + 2.0 * np.asarray(result.x))
    np.testing.assert_allclose(result.stationarity, expected, rtol=1e-6, atol=1e-12)

    result = minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=steps)
    x = np.asarray(result.x)
    nearest = np.where(x == 0, np.clip(CASE.d - x, -0.1, 0.1), 0.1 * np.sign(x))
    assert result.stationarity >= np.linalg.norm(x - CASE.d + nearest) * (1 - 1e-9)  # it knows one subgradient only


@pytest.mark.parametrize(
    ("callback", "status", "steps"),
    [
        (lambda row, snapshot: row["step"] >= 15, Status.STOPPED, 15),
        (lambda row, snapshot: Status.TIME if row["step"] >= 15 else None, Status.TIME, 15),
        (StopBelow("lower_residual", 1e9), Status.STOPPED, 5),
        (TimeLimit(1e-12), Status.TIME, 1),
        (OracleBudget(1), Status.BUDGET, 1),
    ],
)
def test_callbacks_stop_a_run(callback: Any, status: Status, steps: int) -> None:
    rows: list[int] = []
    result = solve(steps=100, every=5, callbacks=[lambda row, snapshot: rows.append(row["step"]), callback])
    assert (result.status, result.steps) == (status, steps)
    assert rows == [row["step"] for row in result.history]  # the last one too
    assert rows[-1] == steps


def by_step(**options: Any) -> list[dict[str, Any]]:
    """A row for each step, with all oracle calls so far."""

    def count(row: dict[str, Any], snapshot: Any) -> None:
        row["calls"] = snapshot.counts.total

    return solve(every=1, callbacks=[count], **options).history


def test_stopping_rules_let_a_run_go_on_until_then() -> None:
    calls = [row["calls"] for row in by_step(steps=30)]
    for every, budget in ((5, calls[7]), (5, calls[7] + 1), (3, calls[8]), (100, calls[9] - 1)):
        result = solve(steps=30, every=every, callbacks=[OracleBudget(budget)])
        assert result.status is Status.BUDGET
        assert result.steps == 1 + next(k for k, total in enumerate(calls) if total >= budget)
        assert result.state.counts.total == calls[result.steps - 1]
    assert solve(steps=100, callbacks=[OracleBudget(10**9), TimeLimit(1e9)]).status is Status.STEPS
    result = solve(steps=500, every=5, callbacks=[StopBelow("stationarity", 1e-6)])
    assert result.history[-1]["stationarity"] <= 1e-6 < result.history[-2]["stationarity"]
    with pytest.raises(KeyError, match=r"no metric 'loss'.*stationarity"):
        solve(callbacks=[StopBelow("loss", 1.0)])


@pytest.mark.parametrize("name", ["proximal BiO-AID", "proximal BiO-AIDm", "proximal BiO-ITD", "proximal BiO-ITDm"])
@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_a_step_100_times_too_large_diverges_to_the_last_finite_iterate(name: str, level: str, dtype: Any) -> None:
    case = follow(0.1, dtype=dtype)
    alpha, beta = (1.0, 200.0) if level == "upper" else (200.0, 0.5)
    solver = paper_solver(name, alpha=alpha, beta=beta, T=5, eta=0.1 if name.endswith("m") else None)
    result = minimize(case.problem, case.x0, case.y0, solver, steps=2000, throw=False)
    assert result.status is Status.DIVERGED
    assert "step_size" in result.status.value
    assert 0 < result.state.step < 2000
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((result.x, result.y, result.state.state)))
    assert result.stationarity > 1e3
    assert result.history[-1]["step"] == result.state.step
    with pytest.raises(SolveError, match="Use an outer step_size 10 times smaller") as raised:
        minimize(case.problem, case.x0, case.y0, solver, steps=2000)
    np.testing.assert_array_equal(raised.value.result.x, result.x)


def convex(x: Any, y: Any) -> Any:
    return jnp.sum((y - x) ** 2)


HOPELESS: dict[str, tuple[Any, Any, Status]] = {  # upper, lower, and how a run ends
    "lower NaN": (convex, lambda x, y: jnp.sum((y - x) ** 2) * jnp.log(-1.0 * y[0]), Status.NONFINITE_START),
    "lower gradient infinite": (convex, lambda x, y: jnp.sum(jnp.sqrt(y - x) + y**2), Status.NONFINITE_START),
    "upper gradient NaN": (lambda x, y: jnp.sum(jnp.sqrt(-y)), convex, Status.ADJOINT_NONFINITE),
    "concave": (lambda x, y: jnp.sum(y**2), lambda x, y: -jnp.sum((y - x) ** 2), Status.NEGATIVE_CURVATURE),
    "linear": (lambda x, y: jnp.sum(y**2), lambda x, y: jnp.sum(y * x), Status.NOT_STRONGLY_CONVEX),
    "saddle": (lambda x, y: jnp.sum(y), lambda x, y: y[0] ** 2 - y[1] ** 2 + y @ x, Status.NEGATIVE_CURVATURE),
}


def hopeless_upper(x: Any, y: Any, data: Any) -> Any:
    """That of a row, by its number: one program serves all rows."""
    return jax.lax.switch(data, [upper for upper, _, _ in HOPELESS.values()], x, y)


def hopeless_lower(x: Any, y: Any, data: Any) -> Any:
    return jax.lax.switch(data, [lower for _, lower, _ in HOPELESS.values()], x, y)


def hopeless(name: str) -> tuple[Problem, Any, Any]:
    number = jnp.int32(list(HOPELESS).index(name))
    return Problem(hopeless_upper, hopeless_lower, data=number), jnp.ones(2), jnp.ones(2)


@pytest.mark.parametrize("linear", [CG(), Direct()], ids=["CG", "direct"])
@pytest.mark.parametrize("name", HOPELESS)
def test_a_problem_that_is_broken_from_the_start(name: str, linear: Any) -> None:
    (problem, x0, y0), status = hopeless(name), HOPELESS[name][2]
    solver = ProxBiO(AID(GradientDescent(0.1, 3), linear), 0.1)
    result = minimize(problem, x0, y0, solver, steps=50, throw=False)
    assert result.status is status
    assert (result.state.step, result.history) == (0, [])
    assert result.stationarity == np.inf
    np.testing.assert_array_equal(result.x, x0)
    np.testing.assert_array_equal(result.y, y0)
    assert str(result).startswith(f"{status.name} after 0 steps")
    with pytest.raises(SolveError) as raised:
        minimize(problem, x0, y0, solver, steps=50)
    assert status.value in str(raised.value)


def test_a_problem_that_breaks_on_the_way_returns_the_iterate_before() -> None:
    """The lower curvature is 2 - x, and the upper level drives x past 2."""
    problem = Problem(lambda x, y: 0.5 * (x - 5) ** 2 + 0.01 * y, lambda x, y: 0.5 * (2 - x) * y**2 - y)
    result = minimize(problem, 0.0, 0.0, ProxBiO(AID(GradientDescent(0.1, 5)), 0.1), steps=50, every=3, throw=False)
    assert result.status is Status.NEGATIVE_CURVATURE
    assert 2 <= result.x < 2.5  # the step to it was fine, the one from it is not
    assert result.state.step > 3
    assert all(np.isfinite(value) for row in result.history for value in row.values())


def test_the_last_row_describes_the_last_good_step() -> None:
    """From x > 2 on the lower objective is NaN."""
    problem = Problem(lambda x, y: (x - 5) ** 2 + y, lambda x, y: (y - x) ** 2 * jnp.where(x > 2, jnp.nan, 1.0))
    for hypergradient in (AID(GradientDescent(0.5, 1)), ITD(GradientDescent(0.5, 1))):
        result = minimize(problem, 0.0, 0.0, ProxBiO(hypergradient, 0.1), steps=50, every=40, throw=False)
        assert result.status is Status.DIVERGED
        assert result.x > 2
        (row,) = result.history
        assert row["step"] == result.state.step
        assert all(np.isfinite(value) for value in row.values() if value is not None)


def test_an_upper_level_that_is_solved_exactly_is_no_fault() -> None:
    """In 32 bits f_y underflows on the way to the solution 0: inner products of it are 0 long before it is."""
    problem = Problem(lambda x, y: 0.5 * jnp.sum(y**2), lambda x, y: jnp.sum((y - x) ** 2))
    start = jnp.ones(3, jnp.float32)
    solver = paper_solver("BiO-AID", alpha=0.25, beta=0.5, T=10)
    result = minimize(problem, start, start, solver, steps=300, throw=False)
    assert result.status is Status.STEPS
    np.testing.assert_allclose(result.x, 0, atol=1e-35)


# --- results ----------------------------------------------------------------------------------------------------------


def test_history_is_one_call_from_a_data_frame() -> None:
    result = solve(steps=20, every=5)
    frame = result.to_frame()
    assert list(frame["step"]) == [5, 10, 15, 20]
    columns = {"step", "objective", "upper", "regularizer", "stationarity", "lower_residual", "linear_residual"}
    assert columns | {"grad_lower", "grad_upper", "hvp", "cross", "prox", "seconds"} <= set(frame.columns)
    np.testing.assert_allclose(frame["objective"], frame["upper"] + frame["regularizer"])
    last = CASE.problem.value_upper(result.x, result.y) + CASE.problem.regularizer.value(result.x)
    np.testing.assert_allclose(frame["objective"].iloc[-1], last, rtol=1e-12)
    assert frame["seconds"].is_monotonic_increasing
    assert frame["hvp"].is_monotonic_increasing


def test_a_result_sums_itself_up() -> None:
    text = str(solve(steps=20))
    for piece in ("STEPS after 20 steps", "stationarity", "oracle calls", "compiling", "Raise steps="):
        assert piece in text
    itd = minimize(CASE.problem, CASE.x0, CASE.y0, ProxBiO(ITD(GradientDescent(1.0, 5)), 0.5), steps=2)
    assert itd.linear_residual is None
    assert "adjoint" not in str(itd)


def test_a_stochastic_solver_gets_a_key_of_each_step() -> None:
    class Walk(pb.Solver):
        def init(self, problem: Any, x: Any, y: Any) -> Any:
            return SkeletonState(x, y, y, x)

        def step(self, problem: Any, state: Any, key: Any) -> Any:
            moved = state._replace(x=state.x + jax.random.normal(key, state.x.shape))
            zero = jnp.zeros(())
            return moved, pb.Info(zero, zero, None, pb.Counts())

    start = (CASE.problem, CASE.x0, CASE.y0, Walk())
    straight = minimize(*start, steps=12, every=5, key=jax.random.key(7))
    expected = sum(np.asarray(jax.random.normal(jax.random.fold_in(jax.random.key(7), k), (4,))) for k in range(12))
    np.testing.assert_allclose(straight.x, expected, rtol=1e-12)
    half = minimize(*start, steps=6, every=2, key=jax.random.key(7))
    np.testing.assert_array_equal(minimize(*start, steps=12, resume=half, key=jax.random.key(7)).x, straight.x)
    together = pb.run(CASE.problem, Walk(), CASE.x0, CASE.y0, steps=12, key=jax.random.key(7))[0].x
    np.testing.assert_allclose(together, straight.x, rtol=1e-12)
    assert not np.allclose(minimize(*start, steps=12, key=jax.random.key(8)).x, straight.x)


# --- callbacks --------------------------------------------------------------------------------------------------------


class Diary(Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def open(self, run: Any) -> None:
        self.events.append(("open", run.first, run.steps))

    def __call__(self, row: dict[str, Any], snapshot: Any) -> None:
        self.events.append(snapshot.step)

    def close(self, snapshot: Any) -> None:
        self.events.append(("close", snapshot.step))


def test_callbacks_are_opened_called_and_closed_in_order() -> None:
    diary = Diary()
    first = solve(steps=10, every=5, callbacks=[diary])
    assert diary.events == [("open", 0, 10), 5, 10, ("close", 10)]
    diary = Diary()
    solve(steps=12, every=5, callbacks=[diary], resume=first)
    assert diary.events == [("open", 10, 12), 12, ("close", 12)]


def test_an_exception_in_a_callback_closes_the_others(tmp_path: Path) -> None:
    def fail(row: dict[str, Any], snapshot: Any) -> None:
        if row["step"] == 15:
            raise RuntimeError("as intended")

    diary = Diary()
    with pytest.raises(RuntimeError, match="as intended"):
        solve(steps=100, every=5, callbacks=[diary, Checkpoint(tmp_path, every=100), fail])
    assert diary.events[-1] == ("close", 15)
    assert [path.stem for path in tmp_path.iterdir()] == ["step-0000000015"]


def test_callbacks_are_closed_when_a_run_breaks_down(tmp_path: Path) -> None:
    diary = Diary()
    problem, x0, y0 = hopeless("concave")
    with pytest.raises(SolveError):
        minimize(problem, x0, y0, ProxBiO(AID(GradientDescent(0.1, 3)), 0.1), steps=50, callbacks=[diary])
    assert diary.events == [("open", 0, 50), ("close", 0)]


def test_a_pickled_result_is_the_same_and_can_be_resumed() -> None:
    result = solve(steps=5, every=5)
    loaded = pickle.loads(pickle.dumps(result))
    assert str(loaded) == str(result)
    assert loaded.history == result.history
    assert solve(steps=10, every=5, resume=loaded).x.tolist() == solve(steps=10, every=5).x.tolist()


def test_rows_have_the_columns_that_are_declared_and_documented() -> None:
    (row,) = solve(steps=5, every=5).history
    assert set(row) == set(HistoryRow.__annotations__)
    assert HistoryRow.__doc__ is not None
    table = [line for line in HistoryRow.__doc__.splitlines() if line.lstrip().startswith("| `")]
    assert sorted(name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])) == sorted(row)


def test_a_callback_may_add_to_the_row(tmp_path: Path) -> None:
    def measure(row: dict[str, Any], snapshot: Any) -> None:
        row["nonzero"] = np.count_nonzero(snapshot.state.x)
        row["largest"] = jnp.max(jnp.abs(snapshot.state.x))

    callbacks = [measure, Record(tmp_path / "run.csv"), Checkpoint(tmp_path)]
    result = solve(steps=10, every=5, callbacks=callbacks)
    assert result.history[-1]["nonzero"] == np.count_nonzero(result.x)
    again = solve(steps=10, every=5, resume=tmp_path)
    assert again.history[-1]["largest"] == float(result.history[-1]["largest"])


@pytest.mark.parametrize("metric", ["objective", "linear_residual"])
def test_progress_is_silent_where_there_is_no_terminal(metric: str, capfd: pytest.CaptureFixture[str]) -> None:
    solve(callbacks=[Progress(metric=metric)])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("metric", ["objective", "linear_residual"])
def test_progress_is_drawn_on_a_terminal(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    seen = io.BytesIO()

    def read() -> None:
        try:
            while piece := os.read(ours, 4096):
                seen.write(piece)
        except OSError:  # the other end was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        solver = ProxBiO(ITD(GradientDescent(1.0, 5)), 0.5)  # has no linear residual to show
        minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=20, callbacks=[Progress("my run", metric)])
        monkeypatch.undo()
    reader.join()
    os.close(ours)
    drawn = seen.getvalue().decode()
    assert "my run" in drawn
    assert "20/20" in drawn
    assert ("objective" in drawn) == (metric == "objective")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_record_writes_each_row_and_goes_on_where_a_run_is_resumed(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.csv", tmp_path / "new folder" / "parts.csv"
    result = solve(steps=20, every=5, callbacks=[Record(whole)])
    assert [row["step"] for row in rows_of(whole)] == ["5", "10", "15", "20"]
    assert [float(row["objective"]) for row in rows_of(whole)] == [row["objective"] for row in result.history]

    first = solve(steps=10, every=5, callbacks=[Record(parts)])
    solve(steps=20, every=5, callbacks=[Record(parts)], resume=first)  # a run that was killed at 20
    with parts.open("a") as file:
        file.write("2")  # ... while it wrote
    solve(steps=20, every=5, callbacks=[Record(parts)], resume=first)
    without_seconds = [
        [{name: value for name, value in row.items() if name != "seconds"} for row in rows_of(path)]
        for path in (parts, whole)
    ]
    assert without_seconds[0] == without_seconds[1]

    solve(steps=5, every=5, callbacks=[Record(parts)])  # a new run starts a new file
    assert [row["step"] for row in rows_of(parts)] == ["5"]


# --- Ctrl-C and threads -----------------------------------------------------------------------------------------------


def press(times: int) -> Any:
    def callback(row: dict[str, Any], snapshot: Any) -> None:
        if row["step"] == 10:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return callback


@pytest.fixture
def _ctrl_c() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # minimize has put it back
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_the_first_ctrl_c_returns_what_was_reached(tmp_path: Path) -> None:
    result = solve(steps=100, every=5, callbacks=[press(1), Checkpoint(tmp_path, every=50)])
    assert (result.status, result.state.step) == (Status.INTERRUPTED, 10)
    again = solve(steps=30, resume=tmp_path)
    np.testing.assert_array_equal(again.x, solve(steps=30).x)


@pytest.mark.usefixtures("_ctrl_c")
def test_the_second_ctrl_c_raises_and_still_saves(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        solve(steps=100, every=5, callbacks=[press(2), Checkpoint(tmp_path, every=50)])
    assert [path.stem for path in tmp_path.iterdir()] == ["step-0000000010"]


def test_a_job_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = solve(steps=20, every=5, callbacks=[press(1)])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.status is Status.STEPS


def test_it_works_outside_the_main_thread() -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(solve(steps=20)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0].x, solve(steps=20).x)


def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    """A process gets SIGINT in the middle of a run without end: it saves, returns, and can be resumed bit for bit."""
    command = [sys.executable, child.__file__, str(tmp_path), str(10**9)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "20":
                process.send_signal(signal.SIGINT)
                break
        *_, last = process.stdout
    status, step = last.split()
    assert (status, process.returncode) == ("INTERRUPTED", 0)
    assert int(step) >= 20
    resumed = child.solve(int(step) + 10, resume=tmp_path)
    straight = child.solve(int(step) + 10)
    for a, b in zip(jax.tree.leaves(resumed.state.state), jax.tree.leaves(straight.state.state), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert resumed.counts.as_dict() == straight.counts.as_dict()


class Clock:
    """A clock that only compiled steps and callbacks move: `compiling` for the first call of the compiled chunk,
    `step` for each step. `during` is called at the end of every call.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, compiling: float, step: float, during: Callable[[float], None] | None
    ):
        self.now, self.calls, self.slices = 100.0, 0, []
        real = _loop.advance

        def advance(*arguments: Any) -> Any:
            done = real(*arguments)
            taken = int(done.steps)
            self.now += compiling if self.calls == 0 else step * taken
            self.slices += [taken] if self.calls else []
            self.calls += 1
            if during is not None:
                during(self.now)
            return done

        monkeypatch.setattr(_loop, "advance", advance)
        monkeypatch.setattr(sys.modules["proxbi._driver"], "time", self)

    def perf_counter(self) -> float:
        return self.now


def test_seconds_tell_compiling_from_running_and_leave_callbacks_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, compiling=7.0, step=0.125, during=None)

    def take_long(row: dict[str, Any], snapshot: Any) -> None:
        clock.now += 1000

    result = solve(steps=20, every=5, callbacks=[take_long])
    assert [row["seconds"] for row in result.history] == [0.625, 1.25, 1.875, 2.5]
    assert result.seconds == (7, 2.5 + 0.125)  # the certificate takes a step


@pytest.mark.slow
@pytest.mark.parametrize("solver", [SOLVER, AdaptiveProxBiO()], ids=["fixed", "adaptive"])
def test_slow_steps_are_cut_into_slices_and_no_number_changes(solver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Result:
        return minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=60, every=30, tol=1e-7)

    straight = run()
    assert straight.converged
    for step in (0.05, 0.3, 0.6, 10.0):
        with monkeypatch.context() as patched:
            clock = Clock(patched, compiling=0.0, step=step, during=None)
            cut = run()
        assert max(clock.slices) <= max(1.0, 1 / step)
        assert [without_seconds(row) for row in cut.history] == [without_seconds(row) for row in straight.history]
        assert (cut.steps, cut.counts.as_dict()) == (straight.steps, straight.counts.as_dict())
        np.testing.assert_array_equal(cut.x, straight.x)


def without_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


@pytest.mark.parametrize("step", [0.01, 0.4, 3.0])
def test_a_time_limit_acts_between_slices(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second of the limit, or with the step that is under way, however long the chunk is."""
    Clock(monkeypatch, compiling=50.0, step=step, during=None)
    result = solve(steps=10**6, every=10**6, callbacks=[TimeLimit(5.0)])
    assert result.status is Status.TIME
    assert 5.0 <= result.history[-1]["seconds"] < 5.0 + max(1.0, step) + 1e-9
    assert len(result.history) == 1


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize("step", [0.01, 0.4, 3.0])
def test_ctrl_c_acts_between_slices(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[float] = []

    def press_once(now: float) -> None:
        if now >= 104.5 and not pressed:
            pressed.append(now)
            signal.raise_signal(signal.SIGINT)

    Clock(monkeypatch, compiling=0.0, step=step, during=press_once)
    result = solve(steps=10**6, every=10**6)
    assert result.status is Status.INTERRUPTED
    assert result.history[-1]["seconds"] == pytest.approx(pressed[0] - 100)  # the slice in which it was pressed
    monkeypatch.undo()
    np.testing.assert_array_equal(result.x, solve(steps=result.steps).x)


# --- the call itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform",
    [jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x[None])],
    ids=["jit", "grad", "vmap"],
)
def test_transformations_of_minimize_are_refused_in_one_sentence(transform: Any) -> None:
    def objective(x0: Any) -> Any:
        return minimize(CASE.problem, x0, CASE.y0, steps=1).objective

    sentence = r"^minimize runs on the host and cannot be traced[^.]*proxbi\.run[^.]*\.(\n|$)"
    with pytest.raises(TypeError, match=sentence):
        transform(objective)(CASE.x0)


def test_a_derivative_in_the_data_is_refused_as_well() -> None:
    def objective(d: Any) -> Any:
        return minimize(data(d=d), CASE.x0, CASE.y0, steps=1).objective

    with pytest.raises(TypeError, match="minimize runs on the host and cannot be traced"):
        jax.grad(objective)(jnp.asarray(CASE.d))


@pytest.mark.parametrize("solver", [SOLVER, None], ids=["fixed", "default"])
@pytest.mark.parametrize("source", ["result", "snapshot"])
def test_a_run_is_resumed_without_x0(source: str, solver: Any) -> None:
    first = minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=4)
    straight = minimize(CASE.problem, CASE.x0, CASE.y0, solver, steps=9)
    again = minimize(CASE.problem, solver=solver, steps=9, resume={"result": first, "snapshot": first.state}[source])
    np.testing.assert_array_equal(again.x, straight.x)
    assert again.counts.as_dict() == straight.counts.as_dict()


def test_a_result_says_what_is_asked_first() -> None:
    result = solve(steps=1000, tol=1e-6)
    assert (result.converged, result.steps) == (True, result.state.step)
    expected = CASE.problem.value_upper(result.x, result.y) + CASE.problem.regularizer.value(result.x)
    assert result.objective == pytest.approx(float(expected), rel=1e-12)
    assert not solve(steps=2, tol=1e-6).converged


def test_the_certificate_is_counted_in_the_result_and_not_in_the_state() -> None:
    result = solve(steps=7)
    one = by_step(steps=8)
    step = one[7]["calls"] - one[6]["calls"]
    assert result.state.counts.total == one[6]["calls"]
    assert result.counts.total == one[6]["calls"] + step  # for this solver, a certificate is a step


def test_progress_is_off_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(Progress, "open", lambda self, run: opened.append(self.label))
    solve(steps=2)
    assert opened == []
    solve(steps=2, progress=True)
    assert opened == ["minimize"]
    solve(steps=2, progress=True, callbacks=[Progress("mine")])
    assert opened == ["minimize", "mine"]


class Falling(pb.Solver):
    """Steps of 1 towards CASE.d[0] = 1.5, and a fault in the given step."""

    broken: int = eqx.field(static=True)

    def init(self, problem: Any, x: Any, y: Any) -> Any:
        return SkeletonState(x, y, y, x)

    def step(self, problem: Any, state: Any, key: Any) -> Any:
        x = state.x + 0.1
        fault = jnp.where(x[0] > 0.1 * self.broken - 0.05, int(pb.Fault.NEGATIVE_CURVATURE), 0)
        zero = jnp.zeros(())
        return SkeletonState(x, x, x, x), pb.Info(zero + 1, zero, None, pb.Counts(), fault)


def test_a_run_that_breaks_down_raises_only_where_nothing_better_was_found() -> None:
    problem = objectives(lambda x, y: jnp.sum((y - 5) ** 2))
    call = partial(minimize, problem, jnp.zeros(2), jnp.zeros(2), steps=20, every=1)
    with pytest.raises(SolveError, match="not convex in y"):
        call(Falling(1))
    with pytest.warns(UserWarning, match="^NEGATIVE_CURVATURE: The lower objective") as seen:
        result = call(Falling(5))
    assert seen[0].filename == __file__
    assert (result.status, result.steps) == (Status.NEGATIVE_CURVATURE, 4)
    assert call(Falling(5), throw=False).status is Status.NEGATIVE_CURVATURE  # no warning, which would be an error


def test_an_infeasible_start_is_named_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loop, "advance", None)
    problem = objectives(h=pb.Box(5.0, 6.0))
    result = minimize(problem, jnp.ones(2), jnp.ones(2), throw=False)
    assert (result.status, result.steps, result.counts.total) == (Status.INFEASIBLE_START, 0, 0)
    np.testing.assert_array_equal(result.x, 1.0)
    with pytest.raises(SolveError, match=r"problem\.regularizer\.prox"):
        minimize(problem, jnp.ones(2), jnp.ones(2))


def flat_at_0(x: Any, y: Any, kink: Any) -> Any:
    return jnp.sum((y - jnp.where(kink, jax.nn.relu(x - 1), x**2)) ** 2)


@pytest.mark.parametrize("kink", [False, True], ids=["square", "dead relu"])
def test_a_flat_start_is_not_called_converged(kink: bool) -> None:
    problem = Problem(lambda x, y, kink: jnp.sum((y - 3) ** 2), flat_at_0, data=jnp.asarray(kink))
    with pytest.warns(UserWarning, match="^FLAT_START: The hypergradient at x0 is zero"):
        result = minimize(problem, jnp.zeros(2), jnp.zeros(2))
    assert result.status is Status.FLAT_START
    assert not result.converged
    np.testing.assert_array_equal(result.x, 0.0)


# --- words ------------------------------------------------------------------------------------------------------------


def test_every_fault_has_a_status_that_says_what_to_do() -> None:
    for fault in pb.Fault:
        if fault is not pb.Fault.NONE:
            assert fault.name in Status.__members__
    for status in Status:
        assert status.value[0].isupper()
        assert status.value.endswith(".")
        assert len(status.value) < 420
    failing = {status.name for status in Status if status.failed}
    seen_on_the_host = {"NOT_STRONGLY_CONVEX", "LOWER_NONSMOOTH"}
    told = {fault.name for fault in pb.Fault} - {"NONE", "PRECISION", "FLAT_START", "ACTIVE_SET"}
    assert failing == told | seen_on_the_host


ADVICE = {
    Status.STEPS: "resume=",
    Status.TIME: "resume=",
    Status.BUDGET: "resume=",
    Status.INTERRUPTED: "resume=",
    Status.PRECISION: "float64",
    Status.ACTIVE_SET: "start again",
    Status.FLAT_START: "Start elsewhere",
    Status.DIVERGED: "step_size",
    Status.NONFINITE_START: "problem.grad_lower",
    Status.NEGATIVE_CURVATURE: "ridge term",
    Status.INFEASIBLE_START: "problem.regularizer.prox",
    Status.UNBOUNDED: "Box",
    Status.NONSMOOTH: "regularizer",
    Status.NOT_STRONGLY_CONVEX: "damping=",
    Status.LOWER_NONSMOOTH: "lower_regularizer=",
    Status.LOWER_UNSOLVED: "better y0",
}


@pytest.mark.parametrize("status", ADVICE, ids=lambda status: status.name)
def test_a_status_names_the_way_out(status: Status) -> None:
    assert ADVICE[status] in status.value
