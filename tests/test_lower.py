"""Lower solvers: the iterates they should make, the answers they should reach, and what they say they cost."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cases import PROBLEMS, flat, follow
from proxbi import AID, Direct, Exact, GradientDescent, Nesterov, Optax, Problem, ProxBiO, minimize
from proxbi.lower import FixedLength, LowerSolver

KAPPA = 20.0
MOMENTUM = (np.sqrt(KAPPA) - 1) / (np.sqrt(KAPPA) + 1)
SOLVERS: dict[str, LowerSolver] = {
    "gradient descent": GradientDescent(0.25, 2500),
    "Nesterov": Nesterov(0.25, MOMENTUM, 800),
    "Nesterov, appendix": Nesterov(0.25, MOMENTUM, 800, "appendix"),
    "optax": Optax(optax.sgd(0.25, momentum=0.8, nesterov=True), 1000),
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


@pytest.mark.parametrize("method", [name for name in SOLVERS if name != "exact"])
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


# --- Exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [2.0, 1000.0])
def test_exact_is_exact(kappa: float) -> None:
    for make in PROBLEMS.values():
        case = make(kappa)
        y, counts = solve(Exact(), case.problem, case.x0, case.y0)
        assert jnp.linalg.norm(case.problem.grad_lower(case.x0, y)) < 1e-13
        # the model: it builds the Hessian at every step, once more for the correction, and checks that
        assert counts.hvp == len(case.y0) * counts.grad_lower + 1
        assert counts.grad_lower >= 2


def test_exact_is_nothing_where_it_is_not_exact() -> None:
    case = PROBLEMS["D smooth, not quadratic"](100.0)
    y, _ = solve(Exact(max_steps=2), case.problem, case.x0, case.y0)
    assert np.isnan(y).all()
    result = minimize(
        case.problem, ProxBiO(AID(Exact(max_steps=2), Direct()), 0.1), case.x0, case.y0, steps=3, throw=False
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
        (lambda: Exact(tol=0.0), "tol"),
        (lambda: Exact(max_steps=0), "max_steps"),
    ],
)
def test_bad_arguments_are_named(make: Any, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        make()
