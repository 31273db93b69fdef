"""`value_and_hypergradient`: against closed forms, under transformations, and where there is no gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cases import PROBLEMS
from proxbi import Box, Implicit, Outcome, Penalty, Problem, _own_loop, value_and_hypergradient
from proxbi.analytic import smooth_nonquadratic, spectral_quadratic
from test_contract import SEEN, SpyProblem


def squares(x: Any, y: Any) -> Any:
    return jnp.sum((y - 2) ** 2)


FOLLOW = Problem(squares, lambda x, y: jnp.sum((y - x) ** 2))
X, Y = np.array([3.0, 0.5]), np.zeros(2)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.hours] if name[0] in "AB" else []) for name in PROBLEMS],
)
def test_it_is_the_closed_form_at_every_kappa(name: str) -> None:
    for kappa in (2.0, 100.0, 1e4):
        case = PROBLEMS[name](kappa)
        value, gradient, info = value_and_hypergradient(case.problem, case.x0, case.y0)
        truth = case.gradient(case.x0)
        off = jnp.linalg.norm(gradient - truth)
        assert off <= 1e-6 * jnp.linalg.norm(truth)
        assert off <= info.error + 1e-12 * jnp.linalg.norm(truth)  # of the truth itself
        assert abs(value - case.value(case.x0)) <= 1e-9 * abs(value)
        assert info.ok
        np.testing.assert_allclose(info.y, case.solution(case.x0), rtol=1e-5, atol=1e-6)


def test_more_accuracy_is_asked_for_and_given() -> None:
    case = smooth_nonquadratic(100.0)
    truth = case.gradient(case.x0)
    calls = []
    for accuracy in (1e-1, 1e-7, 1e-10):  # a first hypergradient is accurate to about 1e-6 in any case
        _, gradient, info = value_and_hypergradient(case.problem, case.x0, case.y0, accuracy=accuracy)
        assert jnp.linalg.norm(gradient - truth) <= info.error <= accuracy * jnp.linalg.norm(gradient)
        calls.append(int(info.counts.total))
    assert calls[0] < calls[1] < calls[2]


def test_a_warm_start_is_cheaper_and_as_good() -> None:
    case = smooth_nonquadratic(1000.0)
    _, _, cold = value_and_hypergradient(case.problem, case.x0, case.y0)
    _, gradient, warm = value_and_hypergradient(case.problem, case.x0 + 1e-3, cold.y, v0=cold.v)
    truth = case.gradient(case.x0 + 1e-3)
    assert warm.counts.total < cold.counts.total
    assert jnp.linalg.norm(gradient - truth) <= 1e-6 * jnp.linalg.norm(truth)
    again = value_and_hypergradient(case.problem, case.x0 + 1e-3, warm.y, v0=warm.v)[1]  # nothing left to correct
    np.testing.assert_allclose(again, gradient, rtol=1e-6)


def test_first_order_only() -> None:
    case = spectral_quadratic(10.0)
    _, gradient, info = value_and_hypergradient(case.problem, case.x0, case.y0, accuracy=1e-4, hypergradient=Penalty())
    truth = case.gradient(case.x0)
    assert jnp.linalg.norm(gradient - truth) <= 1e-4 * jnp.linalg.norm(truth)
    assert info.ok
    assert info.counts.hvp == info.counts.cross == 0


class Spy(SpyProblem):
    def value_and_grad_lower(self, x: Any, y: Any) -> Any:  # one call, as the value comes with the gradient
        return Problem.value_lower(self, x, y), self.grad_lower(x, y)


@pytest.mark.slow
def test_declared_counts_are_observed_calls() -> None:
    case = smooth_nonquadratic(10.0, sizes=(1, 2))
    spy = Spy(case.problem.upper, case.problem.lower, data=case.problem.data)
    with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
        SEEN.clear()
        _, _, info = _own_loop._twice(spy, case.x0, case.y0, case.y0, Implicit(), jnp.asarray(1e-6))
    declared = {name: count for name, count in info.counts.as_dict().items() if count}
    assert dict(SEEN) == declared


# --- transformations --------------------------------------------------------------------------------------------------


def test_jit_is_eager() -> None:
    case = smooth_nonquadratic(10.0)
    eager = value_and_hypergradient(case.problem, case.x0, case.y0)
    jitted = jax.jit(value_and_hypergradient)(case.problem, case.x0, case.y0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), eager, jitted)


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_vmap_is_a_loop() -> None:
    case = smooth_nonquadratic(10.0)
    xs = case.x0 + np.random.default_rng(0).normal(size=(3, len(case.x0)))
    together = jax.vmap(value_and_hypergradient, in_axes=(None, 0, None))(case.problem, xs, case.y0)
    for k, x in enumerate(xs):
        alone = value_and_hypergradient(case.problem, x, case.y0)
        jax.tree.map(
            lambda a, b, k=k: np.testing.assert_allclose(a[k], b, rtol=1e-6, atol=1e-6), together[:2], alone[:2]
        )
        assert together[2].ok[k]


@pytest.mark.slow
def test_a_regularizer_with_arrays_may_be_traced() -> None:
    boxed = Problem(FOLLOW.upper, FOLLOW.lower, Box(-np.ones(2), np.ones(2)))
    value = jax.jit(jax.vmap(lambda x: value_and_hypergradient(boxed, x, Y)[0]))
    first = value(np.stack([X, X]))  # the second call meets the methods that the first one left
    np.testing.assert_array_equal(jax.jit(lambda x: value_and_hypergradient(boxed, x, Y)[0])(X), first[0])


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_a_broken_one_under_vmap_leaves_the_others_alone() -> None:
    problem = Problem(squares, lambda x, y: jnp.sum(x * y**2 - 2 * y))  # convex for x > 0 only
    xs = np.array([[1.0, 2.0], [-1.0, 1.0], [0.5, 1.0]])
    values, gradients, info = jax.vmap(value_and_hypergradient, in_axes=(None, 0, None))(problem, xs, Y)
    truth = -2 * (1 / xs - 2) / xs**2
    np.testing.assert_allclose(gradients[np.array([0, 2])], truth[np.array([0, 2])], rtol=1e-6)
    assert info.ok.tolist() == [True, False, True]
    assert np.isnan(values[1])
    assert np.isnan(gradients[1]).all()
    assert info.outcome[1] == Outcome.NEGATIVE_CURVATURE


@pytest.mark.slow
def test_jax_grad_of_the_value_is_the_hypergradient() -> None:
    case = smooth_nonquadratic(10.0)

    def loss(x: Any, y0: Any) -> Any:
        return jnp.sin(value_and_hypergradient(case.problem, x, y0)[0]) + jnp.sum(x**2)

    value, gradient, _ = value_and_hypergradient(case.problem, case.x0, case.y0)
    expected = jnp.cos(value) * gradient + 2 * case.x0
    by_x, by_y = jax.grad(loss, argnums=(0, 1))(case.x0, case.y0)
    np.testing.assert_allclose(by_x, expected, rtol=1e-6)
    assert not by_y.any()
    batch = jnp.stack([case.x0, case.x0 + 1])
    together = jax.jit(jax.vmap(jax.grad(loss), in_axes=(0, None)))(batch, case.y0)
    np.testing.assert_allclose(together[0], expected, rtol=1e-6)
    (value_too, info), with_aux = jax.value_and_grad(
        lambda x: value_and_hypergradient(case.problem, x, case.y0)[::2], has_aux=True
    )(case.x0)
    np.testing.assert_allclose(with_aux, gradient, rtol=1e-6)
    assert value_too == value
    assert info.ok


def test_derivatives_that_are_not_known_are_refused() -> None:
    def of_gradient(x: Any) -> Any:
        return jnp.sum(value_and_hypergradient(FOLLOW, x, Y)[1])

    with pytest.raises(TypeError, match="only the value that"):
        jax.grad(of_gradient)(X)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.hessian(lambda x: value_and_hypergradient(FOLLOW, x, Y)[0])(X)

    def of_data(scale: Any) -> Any:
        problem = Problem(lambda x, y, data: jnp.sum((y - data) ** 2), lambda x, y: jnp.sum((y - x) ** 2), data=scale)
        return value_and_hypergradient(problem, X, Y)[0]

    with pytest.raises(TypeError, match="with respect to x only"):
        jax.grad(of_data)(1.0)


@pytest.mark.slow
def test_pytrees() -> None:
    problem = Problem(
        lambda x, y: jnp.sum((y["a"] - 2) ** 2) + y["b"][0] ** 2 + x["own"] ** 2,
        lambda x, y: jnp.sum((y["a"] - x["to"]) ** 2) + jnp.sum((y["b"][0] - x["own"]) ** 2),
    )
    x = {"to": X, "own": np.array(1.5)}
    value, gradient, info = value_and_hypergradient(problem, x, {"a": Y, "b": [np.array(0.0)]})
    np.testing.assert_allclose(value, np.sum((X - 2) ** 2) + 2 * 1.5**2, rtol=1e-9)
    np.testing.assert_allclose(gradient["to"], 2 * (X - 2), rtol=1e-6)
    np.testing.assert_allclose(gradient["own"], 4 * 1.5, rtol=1e-6)
    np.testing.assert_allclose(info.y["a"], X)


@pytest.mark.slow
def test_float32() -> None:
    case = smooth_nonquadratic(10.0)
    truth = case.gradient(case.x0)
    problem, x, y = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (case.problem, case.x0, case.y0))
    value, gradient, info = value_and_hypergradient(problem, x, y, accuracy=1e-4)
    assert value.dtype == gradient.dtype == info.y.dtype == info.error.dtype == jnp.float32
    assert jnp.linalg.norm(gradient.astype(float) - truth) <= 1e-4 * jnp.linalg.norm(truth)
    assert info.ok
    _, _, info = value_and_hypergradient(problem, x, y, accuracy=1e-12)  # more than float32 can give
    assert not info.ok
    assert info.outcome == Outcome.ROUGH


# --- where there is no gradient ---------------------------------------------------------------------------------------

UNSOLVABLE = {
    "linear": (lambda x, y: jnp.sum(x * y), Y),
    "concave": (lambda x, y: -jnp.sum((y - x) ** 2), Y),
    "a saddle": (lambda x, y: (y[0] - x[0]) ** 2 - (y[1] - x[1]) ** 2, Y),
    "a kink at the solution": (lambda x, y: jnp.sum((y - x) ** 2) + 9 * jnp.sum(jax.nn.relu(1 - y)), Y),
    "no minimiser": (lambda x, y: jnp.sum(jnp.logaddexp(0.0, -y * jnp.exp(x))), Y),
    "outside of the domain": (lambda x, y: jnp.sum((y - x) ** 2 - jnp.log(1 + y)), Y - 2),
    "NaN": (lambda x, y: jnp.sum((y - x) ** 2) + jnp.sum(jnp.sqrt(-1 - y**2)), Y),
}


def one_of_them(x: Any, y: Any, data: Any) -> Any:
    """The lower level of a row, by its number: one program serves them all."""
    return jax.lax.switch(data, [lower for lower, _ in UNSOLVABLE.values()], x, y)


@pytest.mark.parametrize(
    "hypergradient", [Implicit(), pytest.param(Penalty(), marks=pytest.mark.slow)], ids=["implicit", "penalty"]
)
@pytest.mark.parametrize("name", UNSOLVABLE)
def test_a_lower_level_that_cannot_be_solved_is_reported(name: str, hypergradient: Any) -> None:
    problem = Problem(squares, one_of_them, data=jnp.int32(list(UNSOLVABLE).index(name)))
    x, y0 = np.array([-3.0, 0.5]), UNSOLVABLE[name][1]
    _, gradient, info = value_and_hypergradient(problem, x, y0, hypergradient=hypergradient)
    assert not info.ok
    assert not jnp.isfinite(gradient).any() or info.error > 0.1 * jnp.linalg.norm(gradient)


def test_an_x_that_is_nan_gives_nan_under_jit_and_an_error_outside() -> None:
    bad = X * np.nan
    _, gradient, info = jax.jit(value_and_hypergradient)(FOLLOW, bad, Y)
    assert np.isnan(gradient).all()
    assert info.outcome == Outcome.NONFINITE
    with pytest.raises(ValueError, match="x has 2 NaN"):
        value_and_hypergradient(FOLLOW, bad, Y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((squares, X, Y), "problem must be a proxbi Problem, got function"),
        ((FOLLOW, np.array([1, 2]), Y), "x must be floating point"),
        ((FOLLOW, X, Y.astype(np.float32)), "give all of x0 and y0 one dtype"),
        ((FOLLOW, X, np.zeros(3)), "lower fails on the given"),
        ((Problem(lambda x, y: y - x, FOLLOW.lower), X, Y), "upper must return a scalar"),
    ],
)
def test_refused(arguments: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        value_and_hypergradient(*arguments)


def test_refused_options() -> None:
    with pytest.raises(ValueError, match="accuracy must be finite and > 0"):
        value_and_hypergradient(FOLLOW, X, Y, accuracy=0.0)
    with pytest.raises(ValueError, match="v0 must have the structure"):
        value_and_hypergradient(FOLLOW, X, Y, v0=np.zeros(3))
    with pytest.raises(TypeError, match="got Box"):
        value_and_hypergradient(FOLLOW, X, Y, hypergradient=Box(0.0, 1.0))  # type: ignore[arg-type]  # wrong on purpose


# --- a loop -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_optax_loop_in_one_program_converges() -> None:
    case = spectral_quadratic(10.0)
    optimizer = optax.sgd(1 / case.sharp.L_Phi, momentum=0.9)

    def step(carry: Any, _: None) -> Any:
        x, y, v, state = carry
        _, gradient, info = value_and_hypergradient(case.problem, x, y, v0=v)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(x, updates), info.y, info.v, state), jnp.linalg.norm(gradient)

    first = (case.x0, case.y0, case.y0, optimizer.init(case.x0))
    (x, *_), norms = jax.jit(lambda carry: jax.lax.scan(step, carry, length=300))(first)
    assert jnp.linalg.norm(case.gradient(x)) < 1e-2 * norms[0]
