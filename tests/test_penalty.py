"""Penalty: the right point from gradients alone, errors that are what it says, and no units."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import follow
from proxbi import (
    L0,
    L1,
    MCP,
    AdaptiveProxBiO,
    Box,
    Evaluation,
    Implicit,
    Penalty,
    PenaltyProxBiO,
    Problem,
    Result,
    SolveError,
    Solver,
    Status,
    analytic,
    minimize,
    run,
)
from proxbi.analytic import Analytic

PROBLEMS: dict[str, Callable[[], Analytic]] = {
    "A, kappa 10": lambda: analytic.spectral_quadratic(10.0),
    "A, kappa 100": lambda: analytic.spectral_quadratic(100.0),
    "D": lambda: analytic.smooth_nonquadratic(10.0),
    "D, box": lambda: analytic.smooth_nonquadratic(100.0, regularizer=Box(-0.5, 0.5)),
    "E": lambda: analytic.ridge_hyperparameters(10.0),
}


QUICK = ["A, kappa 10", "D"]
"""Each problem is compiled on its own: these are in CI."""


REPEATED = [pytest.mark.slow, pytest.mark.hours]  # what the others show in every run
OPEN = pytest.mark.xfail(strict=False, reason="open in issue 10: the penalty's error estimate ends this one too early")


def marked(name: str) -> Any:
    return pytest.param(name, marks=[*REPEATED, OPEN] if name == "D, box" else REPEATED)


@pytest.fixture(params=[name if name in QUICK else marked(name) for name in PROBLEMS])
def case(request: pytest.FixtureRequest) -> Analytic:
    return PROBLEMS[request.param]()


def solved(case: Any, solver: Solver | None = None, **options: Any) -> Result:
    options = {"rtol": 1e-6, "steps": 200} | options
    return minimize(case.problem, case.x0, case.y0, PenaltyProxBiO() if solver is None else solver, **options)


def truth(case: Analytic, x: Any, s: Any) -> float:
    """|grad Phi(x) + s| by the closed form, for an s that is checked to be in dh(x): x minimises h(u) - <s, u> near x,
    so for all short steps t it is its own prox at x + t s.
    """
    t = 1e-4
    np.testing.assert_allclose(case.problem.regularizer.prox(x + t * s, t), x, atol=1e-12)
    return float(jnp.linalg.norm(case.gradient(x) + s))


def distance(case: Analytic, result: Result) -> float:
    """dist(0, d(Phi + h)(x)), or a bound of it where h is not an l1 norm: that of the s that the solver found."""
    h, x = case.problem.regularizer, np.asarray(result.x)
    if not isinstance(h, L1):
        return truth(case, result.x, result.state.state.subgradient)
    gradient, strength = np.asarray(case.gradient(result.x)), float(h.strength)
    s = np.where(x == 0, np.clip(-gradient, -strength, strength), strength * np.sign(x))
    return truth(case, result.x, jnp.asarray(s))


# --- where it ends ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_converges_to_a_stationary_point_without_second_derivatives(case: Analytic) -> None:
    result = solved(case)
    assert result.status is Status.CONVERGED
    built = float(jnp.linalg.norm(case.gradient(result.x) - case.gradient(case.x0)))  # by curvature, on the way
    assert result.stationarity <= 3e-6 * built
    assert distance(case, result) <= 1.5 * result.stationarity
    np.testing.assert_allclose(result.y, case.solution(result.x), rtol=1e-4, atol=1e-6)
    assert result.counts.hvp == result.counts.cross == 0
    assert result.counts.value_lower == result.counts.grad_upper  # one of each in a round: g must be finite
    assert result.counts.grad_lower > result.counts.grad_lower_x > result.counts.grad_upper > 5


@pytest.mark.parametrize("name", ["A, kappa 10", pytest.param("E", marks=pytest.mark.slow)])
def test_it_finds_the_minimiser(name: str) -> None:
    """Against 20,000 plain proximal steps on the closed form."""
    case = PROBLEMS[name]()
    beta = 0.5 / float(jnp.linalg.norm(jax.jacobian(case.gradient)(case.x0), 2))

    @jax.jit
    def reference() -> Any:
        def step(_: Any, x: Any) -> Any:
            return case.problem.regularizer.prox(x - beta * case.gradient(x), beta)

        return jax.lax.fori_loop(0, 20_000, step, case.x0)

    best = reference()
    objective = [float(case.value(x) + case.problem.regularizer.value(x)) for x in (solved(case).x, best)]
    assert objective[0] <= objective[1] + 1e-9 * abs(objective[1])


class NoSecondDerivatives(Problem):
    """A problem that says no to every product with a second derivative."""

    def hvp(self, x: Any, y: Any) -> Any:
        raise AssertionError("hvp")

    def cross(self, x: Any, y: Any) -> Any:
        raise AssertionError("cross")


def test_it_never_asks_for_a_second_derivative() -> None:
    case = follow(0.1)
    p = case.problem
    refuses = NoSecondDerivatives(p.upper, p.lower, p.regularizer, p.data)
    result = minimize(refuses, case.x0, case.y0, PenaltyProxBiO(), rtol=1e-6)
    np.testing.assert_allclose(result.x, case.minimiser(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "h", [pytest.param(L0(0.1), id="l0", marks=pytest.mark.slow), pytest.param(MCP(0.3, 2.0), id="mcp")]
)
def test_nonconvex_regularizers(h: Any) -> None:
    """Phi = |x - d|^2 / 2, so that a stationary point is known entry by entry: x = 0, or 0 = x - d + h'(x)."""
    case = follow(0.0)
    problem = eqx.tree_at(
        lambda p: p.regularizer, case.problem, h, is_leaf=lambda leaf: leaf is case.problem.regularizer
    )
    result = minimize(problem, case.x0 + 1, case.y0, PenaltyProxBiO(), rtol=1e-8)
    assert result.status is Status.CONVERGED
    x, s = np.asarray(result.x), np.asarray(result.state.state.subgradient)
    np.testing.assert_allclose((x - case.d) + s, 0, atol=1e-6)
    slope = np.zeros(4) if isinstance(h, L0) else np.sign(x) * np.maximum(0.3 - np.abs(x) / 2.0, 0)
    np.testing.assert_allclose(s[x != 0], slope[x != 0], atol=1e-6)
    assert (x != 0).any()


def test_it_stays_where_it_starts_if_that_is_the_minimiser() -> None:
    case = follow(0.1)
    best = jnp.asarray(case.minimiser())
    result = minimize(case.problem, best, best, PenaltyProxBiO(), tol=1e-8)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x, best, atol=1e-8)
    assert result.state.step < 12


@pytest.mark.slow
def test_a_start_outside_the_domain_of_h_is_refused() -> None:
    case = follow(0.0)
    box = Box(-0.5, 0.5)
    problem = eqx.tree_at(
        lambda p: p.regularizer, case.problem, box, is_leaf=lambda leaf: leaf is case.problem.regularizer
    )
    with pytest.raises(SolveError, match=r"problem\.regularizer\.prox"):
        minimize(problem, case.x0 + 3, case.y0, PenaltyProxBiO(), rtol=1e-8)
    result = minimize(problem, box.prox(case.x0 + 3, 1.0), case.y0, PenaltyProxBiO(), rtol=1e-8)
    np.testing.assert_allclose(result.x, np.clip(case.d, -0.5, 0.5), atol=1e-6)


# --- the errors it reports --------------------------------------------------------------------------------------------


class Trace(NamedTuple):
    error: np.ndarray
    estimate: np.ndarray
    stationarity: np.ndarray


def trace(case: Analytic, solver: Solver, steps: int) -> Trace:
    """The true errors of d along a run, and what it made of them."""

    @jax.jit
    def follow_it(x0: Any, y0: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            state, info = solver.step(case.problem, state, jax.random.key(0))
            found = state.at.found
            error = jnp.linalg.norm(found.grad - case.gradient(state.x))
            return state, (error, found.error, info.stationarity)

        return jax.lax.scan(step, solver.init(case.problem, x0, y0), None, length=steps)[1]

    return Trace(*(np.asarray(a) for a in follow_it(case.x0, case.y0)))


@pytest.mark.slow
def test_the_error_of_d_is_what_it_says(case: Analytic) -> None:
    """Within a factor 10 of the truth in nearly all steps, hardly ever below it, and below the stationarity."""
    seen = trace(case, PenaltyProxBiO(), 60)
    matters = seen.stationarity > 1e-7 * seen.stationarity[0]
    error, estimate, stationarity = (a[matters] for a in seen)
    assert matters.sum() > 10
    assert np.mean(error <= 2 * estimate) >= 0.95
    assert np.all(error <= 10 * estimate)
    assert np.mean(estimate <= 30 * error) >= 0.8
    assert np.mean(estimate <= 0.5 * stationarity) >= 0.8


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_the_bias_falls_with_the_square_of_lam() -> None:
    case = PROBLEMS["D"]()
    errors, reported = [], []
    for lam in (50.0, 100.0, 200.0):
        found = exactly(case, lam)
        errors.append(float(jnp.linalg.norm(found.grad - case.gradient(case.x0))))
        reported.append(float(found.bias))
    np.testing.assert_allclose(np.divide(errors[:2], errors[1:]), 4, rtol=0.1)
    np.testing.assert_allclose(reported, errors, rtol=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.1, 10.0, 1000.0])
def test_there_is_no_bias_where_g_is_quadratic(lam: float) -> None:
    case = PROBLEMS["A, kappa 10"]()
    found = exactly(case, lam)
    np.testing.assert_allclose(found.grad, case.gradient(case.x0), rtol=1e-8, atol=1e-9)
    assert found.bias < 1e-8


def exactly(case: Analytic, lam: float) -> Evaluation:
    """d at x0 with this lam, and inner solves to rounding level."""
    return evaluated(case.problem, case.x0, case.y0, jnp.asarray(lam), jnp.asarray(0.0))


@jax.jit
def evaluated(problem: Problem, x: Any, y: Any, lam: Any, accuracy: Any) -> Evaluation:
    hypergradient = Penalty(lam)
    found = hypergradient.init(problem, x, y)
    for _ in range(2):  # what the first one learned of the lower level is what the second needs
        found = hypergradient(problem, x, found, jnp.zeros_like(x), accuracy)
    return found


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_a_lam_that_is_too_small_ends_at_a_biased_point_and_does_not_call_it_stationary() -> None:
    """The negative control: lam = 1 fixed. |s + d| goes to zero there, but what is reported does not."""
    case = PROBLEMS["D"]()
    free, fixed = solved(case), solved(case, PenaltyProxBiO(penalty=1.0), steps=80)
    state = fixed.state.state
    true = truth(case, fixed.x, state.subgradient)
    assert true > 1e4 * truth(case, free.x, free.state.state.subgradient)
    assert float(state.at.gap) < 1e-2 * true
    assert fixed.status is not Status.CONVERGED
    for said in (fixed.history[-1]["stationarity"], fixed.stationarity):
        assert true / 5 < said < 5 * true
    assert np.linalg.norm(fixed.x - free.x) > 0.01
    assert float(state.at.found.carry.lam) == 1.0


# --- units ------------------------------------------------------------------------------------------------------------


class Units(NamedTuple):
    f: float = 1.0
    g: float = 1.0
    x: float = 1.0
    y: float = 1.0


def upper_in_units(x: Any, y: Any, data: Any) -> Any:
    case, u = data
    return u.f * _a.upper(x / u.x, y / u.y, case)


def lower_in_units(x: Any, y: Any, data: Any) -> Any:
    case, u = data
    return u.g * _a.lower(x / u.x, y / u.y, case)


_a = PROBLEMS["A, kappa 10"]().problem


def in_units(u: Units) -> tuple[Problem, Any, Any]:
    """A in other units: f and h times u.f, g times u.g, and x and y counted in parts of 1/u.x and 1/u.y."""
    case = PROBLEMS["A, kappa 10"]()
    data = (case.problem.data, jax.tree.map(jnp.asarray, u))
    h = L1(0.01 * u.f / u.x)
    return Problem(upper_in_units, lower_in_units, h, data), u.x * case.x0, u.y * (case.y0 + 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "units",
    [
        *(Units(f=1e3), Units(f=1e-3), Units(g=1e3), Units(g=1e-3), Units(f=1e3, g=1e-3)),
        *(Units(x=1e3), Units(x=1e-3), Units(y=1e3), Units(y=1e-3)),  # one program serves them all
    ],
    ids=str,
)
def test_units_do_not_matter(units: Units) -> None:
    totals, steps, points = [], [], []
    for u in (Units(), units):
        problem, x0, y0 = in_units(u)
        result = minimize(problem, x0, y0, PenaltyProxBiO(), rtol=1e-6, steps=300)
        assert result.status is Status.CONVERGED
        totals.append(result.counts.total)
        steps.append(result.state.step)
        points.append(np.asarray(result.x) / u.x)
    np.testing.assert_allclose(points[1], points[0], atol=3e-3)
    assert 1 / 2 < totals[1] / totals[0] < 2
    assert 1 / 2 < steps[1] / steps[0] < 2


# --- precision --------------------------------------------------------------------------------------------------------


def single(case: Analytic) -> tuple[Problem, Any, Any]:
    problem, x0, y0 = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf,
        (case.problem, case.x0, case.y0),
    )
    return problem, x0, y0


@pytest.mark.slow
def test_float32_reaches_what_it_can_and_says_so(case: Analytic) -> None:
    """An error of d of about eps^(2/3), the best that differences can do, and a status that names the cause."""
    problem, x0, y0 = single(case)
    result = minimize(problem, x0, y0, PenaltyProxBiO(), rtol=1e-9, steps=400)
    assert result.status is Status.PRECISION
    assert result.x.dtype == jnp.float32
    best = min(line["stationarity"] for line in result.history)
    assert best < 3e-3 * result.history[0]["stationarity"]
    error = jnp.linalg.norm(case.gradient(result.x.astype(float)) + result.state.state.subgradient.astype(float))
    assert error < 3e-3 * result.history[0]["stationarity"]


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_double_precision_that_asks_too_much_ends_as_well() -> None:
    case = PROBLEMS["E"]()
    result = solved(case, rtol=1e-30, steps=500)
    assert result.status is Status.PRECISION
    assert truth(case, result.x, result.state.state.subgradient) < 1e-9


# --- what it is made of -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_memory_one_still_converges_and_more_is_faster() -> None:
    case = PROBLEMS["A, kappa 10"]()
    steps = [solved(case, PenaltyProxBiO(memory=memory), steps=2000).state.step for memory in (1, 20)]
    assert steps[1] < steps[0] < 2000


def near(x: Any, y: Any) -> Any:
    return jnp.sum((y - x) ** 2)


SMALL = {  # (upper, lower) in two entries each: chosen by a number in the data, so that one program serves them all
    "logarithm of x": (lambda x, y: jnp.sum(jnp.log(x) + y), near),
    "logarithm of y": (lambda x, y: jnp.sum(y - jnp.log(y)), near),
    "upper without y": (lambda x, y: jnp.sum((x - 2) ** 2 + 0.0 * y), near),
    "lower without x": (lambda x, y: jnp.sum((x - y) ** 2), lambda x, y: jnp.sum((y - 3) ** 2 + 0.0 * x * y)),
}


def small_upper(x: Any, y: Any, data: Any) -> Any:
    return jax.lax.switch(data["chosen"], [upper for upper, _ in SMALL.values()], x, y)


def small_lower(x: Any, y: Any, data: Any) -> Any:
    return jax.lax.switch(data["chosen"], [lower for _, lower in SMALL.values()], x, y)


def small(name: str, x0: list[float], y0: float) -> Result:
    problem = Problem(small_upper, small_lower, data={"chosen": jnp.int32(list(SMALL).index(name))})
    return minimize(problem, jnp.array(x0), jnp.full(2, y0), PenaltyProxBiO(), rtol=1e-8, throw=False)


@pytest.mark.slow
def test_a_problem_that_is_not_finite_at_the_start_is_refused() -> None:
    assert small("logarithm of x", [-1.0, -1.0], 0.0).status is Status.NONFINITE_START


def test_a_step_to_where_the_problem_is_not_finite_is_taken_back() -> None:
    """Phi = x - log x has its minimum at 1 and ends at 0, where steps from 30 may lead."""
    result = small("logarithm of y", [30.0, 0.01], 1.0)
    assert not result.status.failed
    np.testing.assert_allclose(result.x, 1.0, rtol=1e-5)


def test_an_upper_level_whose_slope_in_y_is_zero() -> None:
    result = small("upper without y", [0.0, 0.0], 1.0)
    assert not result.status.failed
    np.testing.assert_allclose(result.x, 2.0, rtol=1e-6)


def test_a_lower_level_whose_minimiser_does_not_move() -> None:
    result = small("lower without x", [0.0, 0.0], 1.0)
    assert not result.status.failed
    np.testing.assert_allclose(result.x, 3.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_vmap_over_penalties() -> None:
    case = follow(0.1)
    last = jax.vmap(lambda lam: run(case.problem, PenaltyProxBiO(lam), case.x0, case.y0, steps=15)[0].x)
    np.testing.assert_allclose(last(jnp.array([1.0, 100.0])), np.stack([case.minimiser()] * 2), atol=1e-6)


def test_it_is_the_default_solver_with_another_hypergradient() -> None:
    named = PenaltyProxBiO(penalty=3.0, memory=7)
    assert isinstance(named, AdaptiveProxBiO)
    assert isinstance(named.hypergradient, Penalty)
    assert (float(named.hypergradient.penalty), named.memory) == (3.0, 7)
    assert PenaltyProxBiO().hypergradient.penalty is None
    assert isinstance(AdaptiveProxBiO().hypergradient, Implicit)
    with pytest.raises(TypeError, match=r"must be a ControlledHypergradient such as Implicit\(\), got float"):
        AdaptiveProxBiO(3.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PenaltyProxBiO(penalty=0.0), "penalty"),
        (lambda: PenaltyProxBiO(penalty=-1.0), "penalty"),
        (lambda: PenaltyProxBiO(penalty=np.inf), "penalty"),
        (lambda: PenaltyProxBiO(memory=0), "memory"),
        (lambda: PenaltyProxBiO(memory=2.0), "memory"),
    ],
)
def test_bad_arguments_are_named(make: Any, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        make()
