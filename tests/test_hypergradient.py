"""Hypergradients against closed forms, finite differences and literal transcriptions of the paper's Algorithm 1."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import HYPERGRADIENTS, PROBLEMS, flat, follow
from proxbi import (
    AID,
    CG,
    ITD,
    L1,
    Direct,
    Exact,
    GradientDescent,
    Nesterov,
    Neumann,
    Problem,
    ProxBiO,
    analytic,
    minimize,
    one_step,
    paper_solver,
)
from proxbi.hypergradient import Hypergradient, HypergradientEstimate
from proxbi.linear import LinearStatus


def estimate(hypergradient: Hypergradient, problem: Problem, x: Any, y: Any) -> HypergradientEstimate:
    def call(problem: Problem, x: Any, y: Any) -> HypergradientEstimate:
        return hypergradient(problem, x, y, hypergradient.init(problem, x, y))

    return jax.jit(call)(problem, x, y)


def error(found: Any, expected: Any) -> float:
    found, expected = np.asarray(flat(found)), np.asarray(flat(expected))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def differences(function: Any, x: Any, step: float = 1e-5) -> np.ndarray:
    """The gradient of `function` by central differences of fourth order."""
    x = np.asarray(x)
    value = jax.jit(function)

    def along(e: np.ndarray) -> float:
        near, far = value(x + step * e) - value(x - step * e), value(x + 2 * step * e) - value(x - 2 * step * e)
        return float(8 * near - far) / (12 * step)

    return np.array([along(e) for e in np.eye(len(x))])


# --- closed forms -----------------------------------------------------------------------------------------------------


REPEATED = [pytest.mark.slow, pytest.mark.hours]  # what the hardest kappa shows in every run
KAPPAS = [*(pytest.param(kappa, marks=REPEATED) for kappa in (2.0, 10.0, 100.0)), 1000.0]


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("method", HYPERGRADIENTS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_the_analytic_gradient(name: str, method: str, kappa: float) -> None:
    case = PROBLEMS[name](kappa)
    found = estimate(HYPERGRADIENTS[method](kappa), case.problem, case.x0, case.y0)
    assert error(found.grad, case.gradient(case.x0)) < 1e-8
    assert error(found.y, case.solution(case.x0)) < 1e-8
    assert found.lower_residual < 1e-9


@pytest.mark.parametrize("kappa", [KAPPAS[0], KAPPAS[-1]])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_analytic_gradient_is_that_of_finite_differences(name: str, kappa: float) -> None:
    """Of Phi in closed form, and of f at a lower solution found by another method: none uses a hypergradient."""
    case = PROBLEMS[name](kappa)

    def found_value(x: Any) -> Any:
        y, _ = Exact().solve(case.problem, jnp.asarray(x), case.y0)
        return case.problem.value_upper(x, y)

    assert error(case.gradient(case.x0), differences(case.value, case.x0)) < 1e-7
    assert error(case.gradient(case.x0), differences(found_value, case.x0)) < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("method", HYPERGRADIENTS)
def test_dicts_give_what_vectors_give(method: str) -> None:
    vectors, trees = follow(), follow(trees=True)
    hypergradient = HYPERGRADIENTS[method](4.0)
    found = estimate(hypergradient, trees.problem, trees.x0, trees.y0)
    assert jax.tree.structure(found.grad) == jax.tree.structure(trees.x0)
    assert jax.tree.structure(found.y) == jax.tree.structure(trees.y0)
    np.testing.assert_allclose(flat(found.grad), np.asarray(vectors.x0) - vectors.d, rtol=1e-8)
    plain = estimate(hypergradient, vectors.problem, vectors.x0, vectors.y0)
    np.testing.assert_allclose(flat(found.grad), plain.grad, rtol=1e-12)


def test_a_dict_problem_that_mixes_its_leaves_agrees_with_finite_differences() -> None:
    def upper(x: Any, y: Any, data: Any) -> Any:
        return jnp.sum(jnp.sin(y["w"]) * x["scale"]) + jnp.sum(y["b"] ** 2 * x["shift"][1:]) + jnp.sum(x["shift"] ** 2)

    def lower(x: Any, y: Any, data: Any) -> Any:
        fit = data @ y["w"] - x["shift"]
        ridge = jnp.sum(jnp.exp(x["scale"]) * y["w"] ** 2) + jnp.sum((y["b"] - x["scale"] * y["w"]) ** 2)
        return jnp.sum(jnp.log(jnp.cosh(fit))) + ridge

    draw = np.random.default_rng(0)
    problem = Problem(upper, lower, data=jnp.asarray(draw.normal(size=(3, 2))))
    x = {"scale": jnp.array([0.1, -0.3]), "shift": jnp.array([0.5, -1.0, 0.2])}
    y = {"w": jnp.zeros(2), "b": jnp.ones(2)}
    vector, unravel = jax.flatten_util.ravel_pytree(x)

    def value(vector: Any) -> Any:
        x = unravel(jnp.asarray(vector))
        return problem.value_upper(x, Exact().solve(problem, x, y)[0])

    expected = differences(value, vector)
    for hypergradient in (AID(Exact(), Direct()), ITD(GradientDescent(0.1, 800))):
        found = estimate(hypergradient, problem, x, y).grad
        assert error(jax.flatten_util.ravel_pytree(found)[0], expected) < 1e-8


# --- the paper, line by line ------------------------------------------------------------------------------------------


def algorithm_1_lower(g_y: Any, x: Any, y: Any, alpha: float, eta: float, steps: int) -> Any:
    """Lines 3 to 8 of Algorithm 1."""
    u_last = y
    for _ in range(steps):
        u = y - alpha * g_y(x, y)
        y = u + eta * (u - u_last)
        u_last = u
    return y


def appendix_lower(g_y: Any, x: Any, y: Any, alpha: float, eta: float, steps: int) -> Any:
    """Equations (y0_def), (y1_def) and (yt_def) of the appendix: y^t = (1 + eta) G(y^{t-1}) - eta G(y^{t-2})."""
    ys = [y, y - alpha * g_y(x, y)]
    for _ in range(2, steps + 1):
        new, old = ys[-1] - alpha * g_y(x, ys[-1]), ys[-2] - alpha * g_y(x, ys[-2])
        ys.append((1 + eta) * new - eta * old)
    return ys[steps]


FORMS = {"algorithm": algorithm_1_lower, "appendix": appendix_lower}


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("form", FORMS)
def test_nesterov_is_the_form_of_the_paper_it_is_named_after(form: Any, steps: int) -> None:
    case = analytic.smooth_nonquadratic(20.0)
    g_y = jax.jit(lambda x, y: case.problem.grad_lower(x, y))
    y, _ = Nesterov(0.9, 0.6, steps, form).solve(case.problem, case.x0, case.y0 + 1)
    expected = FORMS[form](lambda x, y: np.asarray(g_y(x, y)), case.x0, np.ones(12), 0.9, 0.6, steps)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    if steps > 1:
        other = FORMS["appendix" if form == "algorithm" else "algorithm"]
        assert error(y, other(g_y, case.x0, np.ones(12), 0.9, 0.6, steps)) > 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["AIDm", "ITDm"])
def test_proximal_bio_is_a_literal_loop_of_algorithm_1(kind: str, form: Any) -> None:
    """Ten outer steps on problem A with every derivative written out, the linear system solved densely, h = |x|_1."""
    case = analytic.spectral_quadratic(10.0)
    a, b, c, d = (np.asarray(case.problem.data[name]) for name in "ABCD".replace("D", "d"))
    alpha, beta, eta, steps, strength = 0.9, 0.4, 0.5, 4, 0.05
    problem = eqx.tree_at(lambda p: p.regularizer, case.problem, L1(strength))
    x, y = np.asarray(case.x0), np.asarray(case.y0)

    for _ in range(10):
        warm = y
        y = FORMS[form](lambda x, y: a @ y - b @ x, x, warm, alpha, eta, steps)
        f_y = c.T @ (c @ y - d)
        if kind == "AIDm":
            gradient = b.T @ np.linalg.solve(a, f_y)  # f_x = 0 and g_xy = -B'
        else:  # y^T is affine in x: its derivative is y^T at the unit vectors, less y^T at 0, from the start 0
            jacobian = FORMS[form](lambda e, y: a @ y - b @ e, np.eye(10), np.zeros((20, 10)), alpha, eta, steps)
            gradient = jacobian.T @ f_y
        forward = x - beta * gradient
        x = np.sign(forward) * np.maximum(np.abs(forward) - beta * strength, 0)

    solver = paper_solver(
        f"proximal BiO-{kind}", alpha=alpha, beta=beta, eta=eta, T=steps, form=form, cg_steps=200, cg_tol=1e-13
    )
    result = minimize(problem, case.x0, case.y0, solver, steps=10)
    np.testing.assert_allclose(result.x, x, rtol=1e-10)
    np.testing.assert_allclose(result.y, y, rtol=1e-10)


# --- ITD --------------------------------------------------------------------------------------------------------------

UNROLLED = {
    "gradient descent": (GradientDescent(0.25, 6), lambda g, x, y, n: algorithm_1_lower(g, x, y, 0.25, 0.0, n)),
    "Nesterov": (Nesterov(0.25, 0.7, 6), lambda g, x, y, n: algorithm_1_lower(g, x, y, 0.25, 0.7, n)),
    "Nesterov, appendix": (
        Nesterov(0.25, 0.7, 6, "appendix"),
        lambda g, x, y, n: appendix_lower(g, x, y, 0.25, 0.7, n),
    ),
}


@pytest.mark.parametrize("name", UNROLLED)
def test_itd_is_the_gradient_of_the_unrolled_function(name: str) -> None:
    case = analytic.ridge_hyperparameters(10.0)
    lower, literal = UNROLLED[name]

    def unrolled(x: Any) -> Any:
        return case.problem.value_upper(x, literal(jax.grad(case.problem.value_lower, argnums=1), x, case.y0, 6))

    found = estimate(ITD(lower), case.problem, case.x0, case.y0)
    assert error(found.grad, jax.jit(jax.grad(unrolled))(case.x0)) < 1e-12
    assert found.aux is None
    assert found.linear is None
    assert found.counts.as_dict() | {"grad_lower": 7, "hvp": 6, "cross": 6} == found.counts.as_dict()
    # With momentum it is the derivative of the momentum map: that of plain steps from the same place is another one.
    plain = estimate(ITD(GradientDescent(0.25, 6)), case.problem, case.x0, case.y0)
    assert (error(found.grad, plain.grad) < 1e-12) == (name == "gradient descent")


@pytest.mark.slow
@pytest.mark.parametrize("tail", [1, 5, 6])
@pytest.mark.parametrize("name", UNROLLED)
def test_truncated_itd_differentiates_the_last_steps_only(name: str, tail: int) -> None:
    case = analytic.ridge_hyperparameters(10.0)
    lower, _ = UNROLLED[name]
    y0 = case.y0 + 1  # at 0 the first step does not depend on x

    def unrolled(x: Any, constant: Any) -> Any:
        carry = lower.init(y0)
        for number in range(6):
            carry = lower.step(case.problem, constant if number < 6 - tail else x, carry)
        return case.problem.value_upper(x, lower.answer(carry))

    found = estimate(ITD(lower, truncate=tail), case.problem, case.x0, y0)
    assert error(found.grad, jax.jit(jax.grad(unrolled))(case.x0, case.x0)) < 1e-12
    full = estimate(ITD(lower), case.problem, case.x0, y0)
    np.testing.assert_array_equal(found.y, full.y)
    assert (error(found.grad, full.grad) < 1e-12) == (tail == 6)
    assert (int(found.counts.hvp), int(found.counts.cross)) == (tail, tail)


# --- negative controls: these must be wrong ---------------------------------------------------------------------------

STIFF = [1.0, 0.3, 0.1, 0.02]  # condition 50


def distance_reached(hypergradient: Hypergradient) -> float:
    """How far from the minimiser `ProxBiO` with this hypergradient settles, on `follow` with condition 50."""
    case = follow(0.1, spectrum=STIFF)
    result = minimize(case.problem, case.x0, case.y0, ProxBiO(hypergradient, 0.02), steps=4000, every=1000)
    assert result.stationarity < 1e-6  # by its own estimate that point is stationary
    assert result.lower_residual < 1e-6
    return float(np.linalg.norm(result.x - case.minimiser()))


@pytest.mark.parametrize("steps", [1, 2])
def test_cold_cg_with_few_steps_goes_to_the_wrong_point_and_warm_cg_does_not(steps: int) -> None:
    lower = Nesterov(1.0, 0.75, 60)
    assert distance_reached(AID(lower, CG(steps, 1e-10), warm=False)) > 1e-2
    assert distance_reached(AID(lower, CG(steps, 1e-10))) < 1e-6


def test_cold_cg_says_that_it_did_not_solve_the_system() -> None:
    case = follow(spectrum=STIFF)
    found = estimate(AID(Nesterov(1.0, 0.75, 200), CG(2, 1e-6), warm=False), case.problem, case.x0, case.y0)
    assert found.linear.status == LinearStatus.BUDGET
    assert found.linear.residual > 1e-2
    assert error(found.grad, case.x0 - case.d) > 1e-2


def test_the_adjoint_term_has_the_right_sign() -> None:
    class WrongSign(Problem):
        def cross(self, x: Any, y: Any) -> Any:
            right = super().cross(x, y)
            return lambda v: jax.tree.map(jnp.negative, right(v))

    case = analytic.ridge_hyperparameters(10.0)
    wrong = WrongSign(case.problem.upper, case.problem.lower, case.problem.regularizer, case.problem.data)
    for hypergradient in (AID(Exact(), Direct()), ITD(GradientDescent(0.25, 400))):
        found = estimate(hypergradient, wrong, case.x0, case.y0)
        assert error(found.grad, -case.gradient(case.x0)) < 1e-8  # f_x = 0 here: all of the gradient is turned around


def test_one_step_differentiation_is_biased_and_known_to_be() -> None:
    case = analytic.spectral_quadratic(10.0)
    a, b, c, d = (np.asarray(case.problem.data[name]) for name in ("A", "B", "C", "d"))
    found = estimate(one_step(Nesterov(1.0, 0.5, 200), 0.7), case.problem, case.x0, case.y0)
    f_y = c.T @ (c @ np.asarray(case.solution(case.x0)) - d)
    left = np.linalg.norm(f_y - 0.7 * a @ f_y) / np.linalg.norm(f_y)
    np.testing.assert_allclose(found.grad, b.T @ (0.7 * f_y), rtol=1e-8)
    assert error(found.grad, case.gradient(case.x0)) > 0.1
    assert found.linear.status == LinearStatus.BUDGET
    np.testing.assert_allclose(found.linear.residual, left, rtol=1e-6)


def test_too_few_lower_steps_are_visible_in_the_residual() -> None:
    case = analytic.spectral_quadratic(100.0)
    found = estimate(AID(GradientDescent(1.0, 3), Direct()), case.problem, case.x0, case.y0)
    assert error(found.grad, case.gradient(case.x0)) > 1e-3
    np.testing.assert_allclose(found.lower_residual, jnp.linalg.norm(case.problem.grad_lower(case.x0, found.y)))
    assert found.lower_residual > 1e-4


# --- parts ------------------------------------------------------------------------------------------------------------


def test_aid_starts_the_adjoint_where_it_is_told() -> None:
    case = follow()
    hypergradient = AID(GradientDescent(1.0, 40), CG(50, 1e-12))
    first = estimate(hypergradient, case.problem, case.x0, case.y0)
    again = hypergradient(case.problem, case.x0, first.y, first.aux)
    assert first.linear.iterations > 1
    assert (int(again.linear.iterations), int(again.linear.matvecs)) == (0, 1)
    cold = AID(GradientDescent(1.0, 40), CG(50, 1e-12), warm=False)
    assert cold(case.problem, case.x0, first.y, first.aux).linear.iterations == first.linear.iterations


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: AID(3), "lower"),
        (lambda: AID(CG()), "lower"),
        (lambda: AID(GradientDescent(0.1, 5), GradientDescent(0.1, 5)), "linear"),
        (lambda: ITD(Exact()), "lower must take a fixed number of steps.*Exact stops on a tolerance"),
        (lambda: ITD(CG()), "lower"),
        (lambda: ITD(GradientDescent(0.1, 5), truncate=0), "truncate"),
        (lambda: ITD(GradientDescent(0.1, 5), truncate=6), "truncate"),
        (lambda: ITD(GradientDescent(0.1, 5), truncate=2.0), "truncate"),
        (lambda: one_step(GradientDescent(0.1, 5), -1.0), "step_size"),
        (lambda: one_step(Neumann(0.1, 5), 1.0), "lower"),
    ],
)
def test_bad_arguments_are_named(make: Any, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        make()


def test_an_estimate_names_its_residuals() -> None:
    case = analytic.spectral_quadratic(10.0)
    lower = GradientDescent(1.0, steps=3)
    for hypergradient, names in ((AID(lower), ["lower", "linear"]), (ITD(lower), ["lower"])):
        found = estimate(hypergradient, case.problem, case.x0, case.y0)
        assert list(found.residuals) == names
        size = jnp.linalg.norm(case.problem.grad_lower(case.x0, found.y))
        assert jnp.allclose(found.residuals["lower"], size, rtol=1e-12)


@pytest.mark.slow
def test_one_set_of_letters_serves_all_eight_methods() -> None:
    """Plain methods leave the momentum unused: they are the same with and without it."""
    case = analytic.smooth_nonquadratic(10.0)
    for name in ("proximal BiO-AID", "proximal BiO-ITD"):
        with_eta, without = ({"eta": 0.5}, {})
        runs = [paper_solver(name, alpha=1.0, beta=0.05, T=3, **eta) for eta in (with_eta, without)]
        results = [minimize(case.problem, case.x0, case.y0, solver, steps=5) for solver in runs]
        assert jnp.array_equal(results[0].x, results[1].x)
