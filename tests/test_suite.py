"""The problems that solvers are compared on: their exact hypergradients, references, units, and the search for the
paper's best setting.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import grid_search
from judge import TARGET, Judge, curvature, reference
from proxbi import L1, Box, CappedL1, Simplex, Status, minimize
from proxbi.lower import Nesterov
from proxbi.theory.lanczos import lower_spectrum
from suite import SUITE, Stretched, random_start, scaled
from suite.case import curvatures

SMALL = [name for name in SUITE if name != "cleaning"]
LITERATURE = SMALL[SMALL.index("representation") :]
"""The problems that are neither analytic nor of the first suite."""
FIRST = ["pricing", "imaml"]
"""Of these: a g with a domain, and pytrees at both levels."""
QUICK = ["A-1e5", "C-10", "D-1e3-capped", "E-100"]


def slowly(names):
    return [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.hours]) for name in names]


def minutes(test):
    """Marks what takes minutes on 2 cores, most of it compiling."""
    return pytest.mark.slow(pytest.mark.hours(test))


def flat(tree):
    return ravel_pytree(tree)[0]


@minutes
def test_the_suite_is_as_broad_as_promised():
    cases = [SUITE[name]() for name in SMALL]
    assert len(SUITE) >= 14
    kinds = {case.kind for case in cases}
    assert {"l1", "capped l1", "group l2", "box", "simplex", "none", "negative capped l1", "nuclear", "mcp"} <= kinds
    assert len(LITERATURE) >= 10
    kappas = [case.kappa for case in cases]
    assert min(kappas) <= 2
    assert max(kappas) >= 1e5
    assert any(jnp.ndim(case.x0) == 0 for case in cases)


@pytest.mark.parametrize("name", [*FIRST, *slowly(name for name in SMALL if name not in FIRST)])
def test_every_start_is_in_the_domain_and_the_lower_level_strongly_convex(name):
    case = SUITE[name]()
    in_domain(case)
    assert curvatures(case.problem, case.x0, case.y0)[0] > 0


def in_domain(case):
    assert jnp.isfinite(case.problem.regularizer.value(case.x0))
    assert jnp.isfinite(case.problem.value_upper(case.x0, case.y0))
    assert jnp.isfinite(case.problem.value_lower(case.x0, case.y0))


@pytest.mark.parametrize("name", [*FIRST, *slowly(name for name in LITERATURE if name not in FIRST)])
def test_random_starts_and_other_units_of_the_new_problems_are_in_the_domain(name):
    case = SUITE[name]()
    for seed in range(5):
        started = random_start(case, seed)
        assert jax.tree.map(jnp.shape, started.x0) == jax.tree.map(jnp.shape, case.x0)
        in_domain(started)
        in_domain(scaled(started, f=1e3, g=0.1, x=20.0, y=0.1))


# Phi by values alone: its slope must be the implicit gradient.
@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIRST, *slowly(name for name in LITERATURE if name not in FIRST)])
def test_exact_gradients_of_the_new_problems_are_the_slope_of_the_value(name):
    case = SUITE[name]()
    exactly = jax.jit(case.exactly)
    at = exactly(case.x0, case.y0)
    size = jnp.linalg.norm(flat(case.problem.grad_lower(case.x0, case.y0)))
    assert jnp.linalg.norm(flat(case.problem.grad_lower(case.x0, at.solution))) <= 1e-11 * (1 + size)
    x0, unravel = ravel_pytree(case.x0)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=x0.size))
    values = [exactly(unravel(x0 + step * direction), at.solution).value for step in (1e-5, -1e-5)]
    slope = float(flat(at.gradient) @ direction)
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_the_truth_does_not_leave_the_domain_wherever_it_starts():
    case = SUITE["pricing"]()
    at = case.exactly(case.x0, case.y0)
    assert (at.solution > 0).all()
    for y in (-5.0, 1e-6, 50.0):
        assert np.allclose(case.exactly(case.x0, jnp.full_like(case.y0, y)).solution, at.solution)
    stretched = scaled(case, x=1e3, y=1e-3)
    assert np.allclose(stretched.exactly(stretched.x0, -stretched.y0).solution, 1e-3 * at.solution)


@pytest.mark.slow
def test_the_lower_level_of_tolls_is_an_equilibrium():
    """What drives on each link is what the logit model sends there."""
    case = SUITE["tolls"]()
    data, toll = case.problem.data, jnp.linspace(0.0, 1.0, 12)
    time = case.exactly(toll, case.y0).solution
    shares = jnp.exp(-data["routes"] @ (time + toll)) * data["exists"]
    shares = shares / jnp.sum(shares, axis=1, keepdims=True)
    sent = jnp.einsum("o,or,orl->l", data["demand"], shares, data["routes"])
    assert np.allclose((time - data["free"]) / data["slope"], sent)
    assert jnp.sum(data["exists"]) == 6 + 3 + 3


# The slope of Phi, with y* by a method that has nothing to do with the exact gradient: very many gradient steps.
@minutes
@pytest.mark.parametrize("name", ["D-10", "scalar", *slowly(["A-2", "E-100", "sources", "logistic"])])
def test_exact_gradients_are_the_slope_of_the_value(name):
    case = SUITE[name]()
    L = float(lower_spectrum(case.problem, case.x0, case.y0).largest) * 1.5
    solve = jax.jit(lambda x: Nesterov(1 / L, 0.9, steps=5000).solve(case.problem, x, case.y0)[0])
    at = case.exactly(case.x0, case.y0)
    assert np.allclose(at.solution, solve(case.x0), atol=1e-8)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=case.x0.shape))
    values = [case.problem.value_upper(x, solve(x)) for x in (case.x0 + 1e-5 * direction, case.x0 - 1e-5 * direction)]
    slope = float(jnp.sum(at.gradient * direction))
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-4, abs=1e-8)


@minutes
@pytest.mark.parametrize("name", [*QUICK, *slowly(name for name in SMALL if name not in QUICK)])
def test_references_are_stationary_by_exact_hypergradients(name):
    case = SUITE[name]()
    found, judge = reference(case), Judge.of(case)
    assert found.stationarity <= 1e-9
    assert judge(found.x, case.y0) <= 1e-9
    assert judge(case.x0, case.y0) == pytest.approx(1)
    moved = jax.tree.map(lambda leaf: leaf + 0.01, found.x)
    assert judge(moved, case.y0) > 1e-7  # the judge does see it when a point is not stationary


@minutes
def test_references_of_problems_with_a_known_minimum():
    assert np.allclose(reference(SUITE["C-10"]()).x, 0)
    assert np.allclose(reference(SUITE["B-10"]()).x, 0, atol=1e-3)  # Phi = sum x^4 / 4 is flat there
    case = SUITE["stiff-30"]()
    a = np.asarray(case.problem.data["a"])  # Phi' = x / a^2 - 1, with the l1 norm of strength 0.01 on top
    assert np.allclose(reference(case).x, 0.99 * a**2)


@minutes
def test_curvature_is_that_of_a_quadratic_wherever_it_is_taken():
    case = SUITE["stiff-30"]()
    assert curvature(case, case.x0) == pytest.approx(900, rel=1e-6)
    assert curvature(case, case.x0 + 1) == pytest.approx(900, rel=1e-6)


@pytest.mark.parametrize("regularizer", [L1(0.3), Box(-0.4, 0.7), CappedL1(0.5, 0.6), Simplex()])
def test_a_stretched_regularizer_is_the_regularizer_in_other_units(regularizer):
    x = jnp.asarray(np.random.default_rng(0).normal(size=5))
    stretched = Stretched(regularizer, 7.0)
    assert np.allclose(stretched.prox(7.0 * x, 49.0 * 0.3), 7.0 * regularizer.prox(x, 0.3))
    inside = regularizer.prox(x, 1.0)
    assert float(stretched.value(7.0 * inside)) == pytest.approx(float(regularizer.value(inside)))
    assert (stretched.convex, stretched.separable) == (regularizer.convex, regularizer.separable)


@minutes
@pytest.mark.parametrize("name", ["D-10", *slowly(["A-30-group", "E-100", "sources"])])
def test_scaling_is_the_same_problem_in_other_units(name):
    case = SUITE[name]()
    f, g, x, y = 1e3, 1e-3, 20.0, 0.1
    other = scaled(case, f=f, g=g, x=x, y=y)
    old, new = case.exactly(case.x0, case.y0), other.exactly(other.x0, other.y0)
    assert np.allclose(new.solution, y * old.solution)
    assert float(new.value) == pytest.approx(f * float(old.value))
    assert np.allclose(new.gradient, f / x * old.gradient)
    # and by its own oracles, which know nothing of `exactly`
    assert np.allclose(other.problem.grad_lower(other.x0, new.solution), 0, atol=1e-7)
    v = jnp.linalg.solve(
        jax.hessian(other.problem.value_lower, argnums=1)(other.x0, new.solution),
        other.problem.grad_upper(other.x0, new.solution)[1],
    )
    gradient = other.problem.grad_upper(other.x0, new.solution)[0] - other.problem.cross(other.x0, new.solution)(v)
    assert np.allclose(gradient, new.gradient, rtol=1e-6, atol=1e-8 * np.abs(new.gradient).max())
    assert Judge.of(other)(other.x0 * 1.01, other.y0) == pytest.approx(
        float(Judge.of(case)(case.x0 * 1.01, case.y0)), rel=1e-3
    )


@minutes
@pytest.mark.parametrize("name", ["A-2", "E-100", "sources", "scalar"])
def test_random_starts_differ_and_are_in_the_domain(name):
    case = SUITE[name]()
    first, again, second = (random_start(case, seed) for seed in (1, 1, 2))
    assert jnp.array_equal(first.x0, again.x0)
    assert not jnp.array_equal(first.x0, second.x0)
    assert not jnp.array_equal(first.y0, second.y0)
    for started in (first, second):
        assert jnp.isfinite(case.problem.regularizer.value(started.x0))
        assert started.x0.shape == case.x0.shape


def searched(name, **options):
    case = SUITE[name]()
    return case, grid_search.search(case, reference(case).x, **options)


@minutes
def test_the_search_finds_a_setting_that_gets_there_in_as_many_calls_as_it_says():
    case, best = searched("D-10", budget=4000, inner=[(1, 2), (5, 5)], betas=(3.0, 10.0, 30.0, 1000.0))
    assert best.settings == 2 * 4 * 4
    lane = jnp.asarray([best.setting.alpha, best.setting.eta, best.setting.beta])
    solver = grid_search.solver(lane, jnp.int32(best.setting.T), best.setting.N)
    result = minimize(case.problem, case.x0, case.y0, solver, steps=best.steps)
    assert result.counts.total - best.steps == best.calls  # AID's report of the lower residual is not charged
    judge = Judge.of(case)
    assert judge(result.x, result.y) <= TARGET
    early = minimize(case.problem, case.x0, case.y0, solver, steps=int(0.9 * best.steps))
    assert judge(early.x, early.y) > TARGET


@minutes
def test_the_search_looks_in_time_however_many_steps_it_takes():
    case, best = searched("A-2", budget=50_000, inner=[(1, 1)], betas=(1.0,))
    assert best.steps > 6000
    lane = jnp.asarray([best.setting.alpha, best.setting.eta, best.setting.beta])
    solver = grid_search.solver(lane, jnp.int32(1), 1)
    early = minimize(case.problem, case.x0, case.y0, solver, steps=int(0.97 * best.steps), every=10_000)
    assert Judge.of(case)(early.x, early.y) > TARGET


@minutes
def test_the_search_says_when_no_setting_gets_there():
    _, best = searched("D-10", budget=100, inner=[(1, 1)], betas=(1.0, 1e9))
    assert best.calls is None
    assert TARGET < best.stationarity < 1
    assert best.setting is not None


@minutes
def test_the_search_stops_the_others_at_the_best():
    case = SUITE["C-10"]()
    judge, grid = Judge.of(case), jnp.asarray(grid_search.lanes(grid_search.scale(case, case.x0), (1.0, 1e-3)))
    raced = grid_search.race(case.problem, judge, grid, jnp.int32(5), 5, case.x0, case.y0, jnp.int32(100_000))
    best = float(jnp.min(raced.found))
    assert best < 1000
    assert not raced.alive.any()
    assert float(jnp.max(raced.calls)) <= 1.05 * best + 30  # a step of 1e-3 would take thousands


def solved(case):
    return minimize(case.problem, x0=case.x0, y0=case.y0)


@minutes
@pytest.mark.parametrize("name", ["C-10", "E-100", *slowly(name for name in SUITE if name not in ("C-10", "E-100"))])
def test_the_default_solves_every_problem_with_nothing_set(name):
    case = SUITE[name]()
    result = solved(case)
    assert result.status is Status.CONVERGED
    assert Judge.of(case)(result.x, result.y) <= 1.05 * TARGET


@minutes
@pytest.mark.parametrize("name", ["E-100", *slowly(["A-2", "A-30-group", "D-1e3-capped", "sources", "scalar"])])
def test_units_change_neither_the_work_nor_the_answer_of_the_default(name):
    case = SUITE[name]()
    own = solved(case)
    for units in ({"f": 1e3}, {"f": 1e-3}, {"g": 1e3}, {"g": 1e-3}, {"x": 1e3}, {"y": 1e-3}):
        other = solved(scaled(case, **units))
        assert 0.5 <= other.counts.total / own.counts.total <= 2
        assert np.allclose(other.x / units.get("x", 1.0), own.x, rtol=1e-3, atol=1e-3)


# Convex ones: there is one minimum, and so one answer.
@minutes
@pytest.mark.parametrize("name", ["C-10", *slowly(["A-2", "A-1e3", "A-30-group", "stiff-30"])])
def test_the_default_ends_at_the_same_minimum_from_wherever_it_starts(name):
    case = SUITE[name]()
    minimum = reference(case).objective
    for seed in range(20):
        started = random_start(case, seed)
        result = solved(started)
        objective = case.exactly(result.x, result.y).value + case.problem.regularizer.value(result.x)
        assert float(objective) == pytest.approx(minimum, rel=1e-5)
