"""Lower solvers: the iterates they should make, the answers they should reach, and what they say they cost."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cases import PROBLEMS, flat, follow
from proxbi import (
    AID,
    ITD,
    AcceleratedGradient,
    Direct,
    Exact,
    GradientDescent,
    Nesterov,
    Optax,
    Problem,
    ProxBiO,
    minimize,
)
from proxbi.lower import FixedLength, LowerSolver, accelerate

KAPPA = 20.0
MOMENTUM = (np.sqrt(KAPPA) - 1) / (np.sqrt(KAPPA) + 1)
SOLVERS: dict[str, LowerSolver] = {
    "gradient descent": GradientDescent(0.25, 2500),
    "Nesterov": Nesterov(0.25, MOMENTUM, 800),
    "Nesterov, appendix": Nesterov(0.25, MOMENTUM, 800, "appendix"),
    "optax": Optax(optax.sgd(0.25, momentum=0.8, nesterov=True), 1000),
    "accelerated": AcceleratedGradient(1e-13),
    "exact": Exact(),
}


def solve(solver: LowerSolver, problem: Problem, x: Any, y: Any) -> Any:
    return jax.jit(lambda problem, x, y: solver.solve(problem, x, y))(problem, x, y)


@pytest.mark.parametrize("method", SOLVERS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_finds_the_lower_solution(name: str, method: str) -> None:
    case = PROBLEMS[name](KAPPA)
    y, _ = solve(SOLVERS[method], case.problem, case.x0, case.y0)
    np.testing.assert_allclose(y, case.solution(case.x0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", SOLVERS)
def test_dicts_and_starts(method: str) -> None:
    case = follow(trees=True)
    x = jax.tree.map(lambda leaf: leaf + 2, case.x0)
    y, _ = solve(SOLVERS[method], case.problem, x, case.y0)
    assert jax.tree.structure(y) == jax.tree.structure(case.y0)
    np.testing.assert_allclose(flat(y), 2.0, rtol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("method", SOLVERS)
def test_dtypes_are_kept(method: str, dtype: Any) -> None:
    case = follow(dtype=dtype)
    y, _ = solve(SOLVERS[method], case.problem, case.x0 + 2, case.y0)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, 2.0, rtol=1e-5)


@pytest.mark.parametrize("method", [name for name, solver in SOLVERS.items() if isinstance(solver, FixedLength)])
def test_it_takes_exactly_its_steps_and_says_so(method: str) -> None:
    """The carry after `steps` steps by hand is where `solve` ends, to the bit."""
    solver = SOLVERS[method]
    assert isinstance(solver, FixedLength)
    case = PROBLEMS["E ridge"](KAPPA)
    short = type(solver)(**{**vars(solver), "steps": 7})
    y, counts = solve(short, case.problem, case.x0, case.y0)
    carry = short.init(case.y0)
    for _ in range(7):
        carry = short.step(case.problem, case.x0, carry)
    np.testing.assert_allclose(y, short.answer(carry), rtol=1e-12)
    assert counts.as_dict() | {"grad_lower": 7} == counts.as_dict()
    assert int(counts.total) == 7


def test_gradient_descent_is_its_formula() -> None:
    case = follow()
    y, _ = GradientDescent(0.3, 4).solve(case.problem, case.x0, case.y0)
    expected = np.linalg.matrix_power(np.eye(4) - 0.3 * case.a, 4) @ np.ones(4)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_optax_starts_afresh_at_every_solve() -> None:
    case = follow()
    solver = Optax(optax.sgd(0.1, momentum=0.9), 5)
    first, _ = solver.solve(case.problem, case.x0, case.y0)
    again, _ = solver.solve(case.problem, case.x0, case.y0)
    np.testing.assert_array_equal(first, again)


def test_acceleration_is_worth_it() -> None:
    """120 steps at kappa = 400: Nesterov is ahead of plain gradient descent by far."""
    case = PROBLEMS["A spectral quadratic"](400.0)
    momentum = (20 - 1) / (20 + 1)
    error = {}
    for name, solver in (("plain", GradientDescent(1.0, 120)), ("fast", Nesterov(1.0, momentum, 120))):
        y, _ = solve(solver, case.problem, case.x0, case.y0)
        error[name] = float(jnp.linalg.norm(y - case.solution(case.x0)))
    assert error["fast"] < error["plain"] / 10


# --- AcceleratedGradient ----------------------------------------------------------------------------------------------


def quadratic(x: Any, y: Any, data: Any) -> Any:
    gap = y - data["y"]
    return 0.5 * gap @ (data["A"] @ gap)


def bowl(spectrum: Any, *, curvature: float = 1.0, size: float = 1.0, dtype: Any = float, seed: int = 0) -> Problem:
    """g = (y - y*)'A(y - y*) / 2 with the eigenvalues curvature * spectrum and |y*| about `size`."""
    draw = np.random.default_rng(seed)
    n = len(spectrum)
    rotation = np.linalg.qr(draw.normal(size=(n, n)))[0]
    a, y = rotation @ np.diag(curvature * np.asarray(spectrum)) @ rotation.T, size * draw.normal(size=n) / np.sqrt(n)
    return Problem(quadratic, quadratic, data={"A": jnp.asarray(a, dtype), "y": jnp.asarray(y, dtype)})


X = jnp.zeros(1)


def relative_error(problem: Problem, y: Any) -> float:
    return float(jnp.linalg.norm(y - problem.data["y"]) / jnp.linalg.norm(problem.data["y"]))


@pytest.mark.parametrize("kappa", [1.0, 10.0, 1e2, 1e4])
def test_accelerated_needs_sqrt_kappa_gradients_and_keeps_its_word(kappa: float) -> None:
    problem = bowl(np.geomspace(1 / kappa, 1, 50))
    y, counts = solve(AcceleratedGradient(1e-6), problem, X, jnp.zeros(50))
    assert relative_error(problem, y) < 3e-6  # tol is the relative error, as it estimates it
    assert int(counts.total) == int(counts.grad_lower) < 20 + 20 * np.sqrt(kappa)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("curvature", [1e-6, 1e-3, 1.0, 1e3, 1e9])
def test_accelerated_does_not_know_the_units(curvature: float, size: float) -> None:
    """Not from y = 0, which has no size: a start that scales along gives the same run."""
    counts = []
    for units in ((1.0, 1.0), (curvature, size)):
        problem = bowl(np.geomspace(1e-2, 1, 30), curvature=units[0], size=units[1])
        y, found = solve(AcceleratedGradient(1e-8), problem, X, units[1] * jnp.ones(30))
        assert relative_error(problem, y) < 1e-7
        counts.append(int(found.grad_lower))
    assert abs(counts[1] - counts[0]) <= 0.1 * counts[0]


SPECTRA = {"spread": np.geomspace(1e-4, 1, 50), "two clusters": np.repeat([1e-4, 1.0], 25)}


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_accelerated_stops_at_the_rounding_level_of_float32(spectrum: str) -> None:
    """kappa = 1e4 in float32: y right up to eps kappa, and no more gradients than it takes to get there."""
    problem = bowl(SPECTRA[spectrum], dtype=jnp.float32)
    solver = AcceleratedGradient(0.0)
    y, counts = solve(solver, problem, X, jnp.zeros(50, jnp.float32))
    eps = float(jnp.finfo(jnp.float32).eps)
    assert relative_error(problem, y) < 10 * 1e4 * eps
    assert jnp.linalg.norm(problem.grad_lower(X, y)) < 4 * eps * jnp.linalg.norm(y)
    assert counts.grad_lower < 1500
    _, again = solve(solver, problem, X, y)
    assert again.grad_lower < 120


@pytest.mark.parametrize("too_long", [0.01, 1.0, 1e3, 1e6])
def test_accelerated_corrects_the_step_size_it_is_given(too_long: float) -> None:
    problem = bowl(np.geomspace(1e-2, 1, 30))
    found = AcceleratedGradient(1e-8).descend(problem, X, jnp.ones(30), too_long)
    assert relative_error(problem, found.y) < 1e-7
    assert 0.3 * min(too_long, 1) < found.step_size < 3
    assert 30 < found.flatness < 101  # 1 / mu = 100, from below
    np.testing.assert_allclose(found.gradient, problem.grad_lower(X, found.y), atol=1e-12)
    np.testing.assert_allclose(found.residual, jnp.linalg.norm(found.gradient))


def test_accelerated_goes_on_from_where_it_was_for_one_gradient() -> None:
    problem = bowl(np.geomspace(1e-2, 1, 30))
    solver = AcceleratedGradient(1e-6)
    first = solver.descend(problem, X, jnp.ones(30))
    again = solver.descend(problem, X, first.y, first.step_size)
    assert int(again.calls) == 1
    np.testing.assert_array_equal(again.y, first.y)
    assert solver.descend(problem, X, first.y).calls > 1  # a probe, and the short step it finds here


def test_accelerated_counts_what_it_calls() -> None:
    calls = []
    problem = bowl(np.geomspace(1e-2, 1, 10))

    def gradient(y: Any) -> Any:
        calls.append(1)
        return problem.grad_lower(X, y)

    with jax.disable_jit():
        found = accelerate(gradient, jnp.ones(10), tol=1e-4)
        assert found.calls == len(calls) > 10
        calls.clear()
        stopped = accelerate(gradient, jnp.ones(10), tol=1e-12, max_steps=7)
        assert stopped.calls == len(calls) == 7
    np.testing.assert_allclose(stopped.residual, jnp.linalg.norm(problem.grad_lower(X, stopped.y)), rtol=1e-12)


def test_accelerated_distance_is_an_alternative_to_tol() -> None:
    problem = bowl(np.geomspace(1e-2, 1, 30))
    found = accelerate(lambda y: problem.grad_lower(X, y), jnp.ones(30), distance=1e-5)
    assert 1e-8 < jnp.linalg.norm(found.y - problem.data["y"]) < 3e-5


def test_accelerated_has_nothing_to_do_at_the_solution_and_nothing_it_can_do_without_a_gradient() -> None:
    problem = bowl(np.ones(4))
    found = AcceleratedGradient().descend(problem, X, problem.data["y"])
    assert (float(found.residual), int(found.calls)) == (0.0, 2)
    broken = Problem(quadratic, lambda x, y: jnp.sum(jnp.log(y) + x))
    found = AcceleratedGradient().descend(broken, X, jnp.full(3, jnp.nan))
    assert int(found.calls) <= 2


def test_accelerated_steps_back_from_where_the_gradient_is_not_finite() -> None:
    """g = y^2 / 2 - 10 log(1 - y) has a wall at 1, and a step of size 100 jumps over it."""
    problem = Problem(lambda x, y: jnp.sum(y), lambda x, y: jnp.sum((y - x) ** 2 / 2 - 10 * jnp.log(1 - y)))
    found = AcceleratedGradient(1e-8).descend(problem, jnp.zeros(2), jnp.array([-30.0, 0.9]), 100.0)
    roots = -np.full(2, (np.sqrt(41) - 1) / 2)  # y + 10 / (1 - y) = 0
    np.testing.assert_allclose(found.y, roots, rtol=1e-6)


def test_accelerated_cannot_be_unrolled() -> None:
    with pytest.raises(TypeError, match="AcceleratedGradient stops on a tolerance"):
        ITD(AcceleratedGradient())


# --- Exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [2.0, 1000.0])
def test_exact_is_exact(kappa: float) -> None:
    for make in PROBLEMS.values():
        case = make(kappa)
        y, counts = solve(Exact(), case.problem, case.x0, case.y0)
        assert jnp.linalg.norm(case.problem.grad_lower(case.x0, y)) < 1e-13
        # the model: it builds the Hessian at every step, once more for the correction, and each time checks its solve
        hessians, rest = divmod(int(counts.hvp), len(case.y0) + 1)
        assert rest == 0
        assert counts.grad_lower >= hessians >= 2  # a gradient at the start, and no step without one


def test_exact_is_nothing_where_it_is_not_exact() -> None:
    case = PROBLEMS["D smooth, not quadratic"](100.0)
    y, _ = solve(Exact(max_steps=2), case.problem, case.x0, case.y0)
    assert np.isnan(y).all()
    result = minimize(
        case.problem, case.x0, case.y0, ProxBiO(AID(Exact(max_steps=2), Direct()), 0.1), steps=3, throw=False
    )
    assert result.status.name == "NONFINITE_START"
    np.testing.assert_array_equal(result.x, case.x0)


def test_exact_without_double_precision() -> None:
    """With JAX's default of 32 bits the tolerance of 1e-12 is out of reach, and rounding level must do."""
    with jax.enable_x64(False):
        for make in PROBLEMS.values():
            case = make(10.0)
            y, _ = solve(Exact(), case.problem, case.x0, case.y0)
            assert y.dtype == jnp.float32
            np.testing.assert_allclose(y, case.solution(case.x0), rtol=1e-3, atol=1e-5)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: GradientDescent(0.0, 5), "step_size"),
        (lambda: GradientDescent(-0.1, 5), "step_size"),
        (lambda: GradientDescent(np.nan, 5), "step_size"),
        (lambda: GradientDescent(np.inf, 5), "step_size"),
        (lambda: GradientDescent(0.1, 0), "steps"),
        (lambda: GradientDescent(0.1, -3), "steps"),
        (lambda: GradientDescent(0.1, 5.0), "steps"),
        (lambda: GradientDescent(0.1, True), "steps"),
        (lambda: Nesterov(-0.1, 0.9, 5), "step_size"),
        (lambda: Nesterov(0.1, -0.9, 5), "momentum"),
        (lambda: Nesterov(0.1, 0.9, 0), "steps"),
        (lambda: Nesterov(0.1, 0.9, 5, "heavy ball"), "form"),
        (lambda: Optax(0.1, 5), "optimizer"),
        (lambda: Optax(optax.sgd, 5), "optimizer"),
        (lambda: Optax(optax.sgd(0.1), 0), "steps"),
        (lambda: AcceleratedGradient(-1.0), "tol"),
        (lambda: AcceleratedGradient(np.nan), "tol"),
        (lambda: AcceleratedGradient(max_steps=0), "max_steps"),
        (lambda: Exact(tol=0.0), "tol"),
        (lambda: Exact(max_steps=0), "max_steps"),
    ],
)
def test_bad_arguments_are_named(make: Any, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        make()
