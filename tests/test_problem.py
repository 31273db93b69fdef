"""The oracles of `Problem` against finite differences, and how problems are built."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import PROBLEMS
from proxbi import AID, CG, ITD, L1, Counts, Direct, GradientDescent, Penalty, Problem, Zero, _validate
from proxbi.problem import differentiable_grad_lower

STEP = 1e-5


def directional(function: Any, at: Any, direction: Any) -> Any:
    """The derivative of `function` at `at` along `direction`, by central differences."""
    return (function(at + STEP * direction) - function(at - STEP * direction)) / (2 * STEP)


@pytest.mark.parametrize("name", PROBLEMS)
def test_oracles_are_finite_differences_of_the_values(name: str) -> None:
    case = PROBLEMS[name](10.0)
    p, x = case.problem, case.x0
    draw = np.random.default_rng(0)
    y, u, w = (jnp.asarray(draw.normal(size=case.y0.shape)) for _ in range(3))
    s = jnp.asarray(draw.normal(size=x.shape))
    close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)

    f_x, f_y = p.grad_upper(x, y)
    close(f_x @ s, directional(lambda x: p.value_upper(x, y), x, s))
    close(f_y @ u, directional(lambda y: p.value_upper(x, y), y, u))
    close(p.grad_lower(x, y) @ u, directional(lambda y: p.value_lower(x, y), y, u))
    close(p.grad_lower_x(x, y) @ s, directional(lambda x: p.value_lower(x, y), x, s))
    close(p.hvp(x, y)(u) @ w, directional(lambda y: p.grad_lower(x, y), y, u) @ w)
    close(p.cross(x, y)(u) @ s, directional(lambda x: p.grad_lower(x, y), x, s) @ u)
    close(p.hvp(x, y)(u) @ w, p.hvp(x, y)(w) @ u)  # symmetric
    assert p.hvp(x, y)(u).shape == y.shape
    assert p.cross(x, y)(u).shape == x.shape


def test_the_derivative_of_a_lower_step_goes_through_hvp_and_cross() -> None:
    case = PROBLEMS["E ridge"](10.0)
    w = jnp.asarray(np.random.default_rng(0).normal(size=case.y0.shape))
    y = case.y0 + 1
    _, pull_back = jax.vjp(lambda x, y: differentiable_grad_lower(case.problem, x, y), case.x0, y)
    by_x, by_y = pull_back(w)
    np.testing.assert_allclose(by_x, case.problem.cross(case.x0, y)(w), rtol=1e-12)
    np.testing.assert_allclose(by_y, case.problem.hvp(case.x0, y)(w), rtol=1e-12)
    _, plain = jax.vjp(case.problem.grad_lower, case.x0, y)
    np.testing.assert_allclose(by_x, plain(w)[0], rtol=1e-12)
    np.testing.assert_allclose(by_y, plain(w)[1], rtol=1e-12)


class Doubled(Problem):
    """A problem that knows one of its oracles better than autodiff; here, by a factor that shows."""

    which: str = eqx.field(static=True, default="")

    def _map(self, name: str, right: Any) -> Any:
        return (lambda v: 2 * right(v)) if self.which == name else right

    def hvp(self, x: Any, y: Any) -> Any:
        return self._map("hvp", super().hvp(x, y))

    def cross(self, x: Any, y: Any) -> Any:
        return self._map("cross", super().cross(x, y))

    def grad_upper(self, x: Any, y: Any) -> Any:
        factor = 2 if self.which == "grad_upper" else 1
        return jax.tree.map(lambda leaf: factor * leaf, super().grad_upper(x, y))

    def grad_lower(self, x: Any, y: Any) -> Any:
        return (2 if self.which == "grad_lower" else 1) * super().grad_lower(x, y)

    def grad_lower_x(self, x: Any, y: Any) -> Any:
        return (2 if self.which == "grad_lower_x" else 1) * super().grad_lower_x(x, y)


def doubled(which: str) -> Doubled:
    """f = |y - 1|^2 / 2 and g = |y - x|^2 / 2, with H = I and g_xy = -I."""
    return Doubled(
        lambda x, y: 0.5 * jnp.sum((y - 1) ** 2), lambda x, y: 0.5 * jnp.sum((y - x) ** 2), Zero(), None, which
    )


X, Y = jnp.full(2, 3.0), jnp.full(2, 3.0)


@pytest.mark.parametrize(("which", "factor"), [("", 1), ("hvp", 0.5), ("cross", 2), ("grad_upper", 2)])
def test_aid_uses_each_oracle_that_is_overridden(which: str, factor: float) -> None:
    for linear in (CG(), Direct()):
        hypergradient = AID(GradientDescent(1.0, 1), linear)
        found = hypergradient(doubled(which), X, Y, hypergradient.init(doubled(which), X, Y))
        np.testing.assert_allclose(found.grad, factor * 2.0)


@pytest.mark.parametrize(("which", "factor"), [("", 0.75), ("hvp", 0.5), ("cross", 1.5), ("grad_upper", 1.5)])
def test_itd_uses_each_oracle_that_is_overridden(which: str, factor: float) -> None:
    """Two steps of size 1/2 pull f_y back to (1/2 + 1/2 (1 - 1/2)) f_y; with the doubled hvp to (1/2 + 0) f_y."""
    found = ITD(GradientDescent(0.5, 2))(doubled(which), X, Y, None)
    np.testing.assert_allclose(found.grad, factor * 2.0)


@pytest.mark.parametrize(("which", "factor"), [("", 1), ("grad_lower_x", 2), ("grad_upper", 2), ("grad_lower", 0.5)])
def test_the_penalty_method_uses_each_oracle_that_is_overridden(which: str, factor: float) -> None:
    """d = f_x + lam/2 (g_x(w_1) - g_x(w_-1)) is linear in g_x and f, and a steeper g_y halves the tilt of w."""
    problem, hypergradient = doubled(which), Penalty()
    found = hypergradient(problem, X, hypergradient.init(problem, X, jnp.zeros(2)), jnp.zeros(2), jnp.array(0.1))
    np.testing.assert_allclose(found.grad, factor * 2.0, rtol=1e-2)


def test_the_lower_solver_uses_the_overridden_gradient() -> None:
    y, _ = GradientDescent(0.5, 1).solve(doubled("grad_lower"), X, jnp.zeros(2))
    np.testing.assert_allclose(y, X)
    y, _ = GradientDescent(0.5, 1).solve(doubled(""), X, jnp.zeros(2))
    np.testing.assert_allclose(y, X / 2)


# --- objectives -------------------------------------------------------------------------------------------------------


class Weighted(eqx.Module):
    """A callable with arrays in it."""

    weight: jax.Array

    def __call__(self, x: Any, y: Any) -> Any:
        return jnp.sum(self.weight * (y - x) ** 2)


class Plain:
    """A callable that is no pytree."""

    def __call__(self, x: Any, y: Any, data: Any) -> Any:
        return data * jnp.sum((y - x) ** 2)

    def method(self, x: Any, y: Any) -> Any:
        return jnp.sum((y - x) ** 2)


def scaled(x: Any, y: Any, factor: Any = 1.0) -> Any:
    return factor * jnp.sum((y - x) ** 2)


OBJECTIVES = {
    "three arguments": (lambda x, y, data: data * jnp.sum((y - x) ** 2), 3.0),
    "two arguments": (lambda x, y: jnp.sum((y - x) ** 2), 1.0),
    "a default, called data": (lambda x, y, data=1.0: data * jnp.sum((y - x) ** 2), 3.0),
    "a fourth argument": (lambda x, y, data, factor=2.0: factor * data * jnp.sum((y - x) ** 2), 6.0),
    "a partial": (partial(scaled, factor=5.0), 5.0),
    "any number": (lambda *arguments: arguments[2] * jnp.sum((arguments[1] - arguments[0]) ** 2), 3.0),
    "a module with arrays": (Weighted(jnp.full(2, 7.0)), 7.0),
    "a callable object": (Plain(), 3.0),
    "a method": (Plain().method, 1.0),
    "jitted": (jax.jit(lambda x, y: jnp.sum((y - x) ** 2)), 1.0),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_may_be_any_callable(name: str) -> None:
    function, factor = OBJECTIVES[name]
    problem = Problem(function, function, data=jnp.asarray(3.0))
    x, y = jnp.zeros(2), jnp.array([1.0, 2.0])

    @jax.jit
    def values(problem: Problem, x: Any, y: Any) -> Any:
        return problem.value_upper(x, y), problem.value_lower(x, y), problem.grad_lower(x, y), problem.hvp(x, y)(y)

    upper, lower, gradient, product = values(problem, x, y)
    assert float(upper) == float(lower) == 5 * factor
    np.testing.assert_allclose(gradient, 2 * factor * y)
    np.testing.assert_allclose(product, 2 * factor * y)


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_a_default_is_not_overwritten_by_the_data_in_silence(level: str) -> None:
    others = {"upper": Plain().method, "lower": Plain().method}
    message = rf"^{level}: its third argument 'factor' has a default.*functools.partial\({level}, factor=...\)"
    with pytest.raises(TypeError, match=message):
        Problem(**others | {level: scaled}, data=jnp.asarray(3.0))
    with pytest.raises(TypeError, match=message):
        Problem(**others | {level: scaled})  # without data too: None would be handed over


def test_arrays_in_an_objective_are_leaves_and_not_constants() -> None:
    problem = Problem(Weighted(jnp.ones(2)), Weighted(jnp.ones(2)))
    assert len(jax.tree.leaves(problem)) == 2
    traces = []

    @jax.jit
    def value(problem: Problem) -> Any:
        traces.append(1)
        return problem.value_lower(jnp.zeros(2), jnp.ones(2))

    changed = eqx.tree_at(lambda p: p.lower, problem, replace_fn=lambda f: jax.tree.map(lambda leaf: 4 * leaf, f))
    assert (float(value(problem)), float(value(changed)), len(traces)) == (2.0, 8.0, 1)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Problem(3, lambda x, y: 0.0), "upper"),
        (lambda: Problem(lambda x, y: 0.0, None), "lower"),
        (lambda: Problem(lambda x: 0.0, lambda x, y: 0.0), "upper"),
        (lambda: Problem(lambda x, y: 0.0, lambda: 0.0), "lower"),
        (lambda: Problem(lambda x, y: 0.0, lambda x, y: 0.0, 0.1), "regularizer"),
        (lambda: Problem(lambda x, y: 0.0, lambda x, y: 0.0, L1), "regularizer"),
        (lambda: Problem(lambda x, y: 0.0, lambda x, y: 0.0, jnp.abs), "regularizer"),
    ],
)
def test_bad_arguments_are_named(make: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        make()


# --- counts -----------------------------------------------------------------------------------------------------------


def test_counts_add_kind_by_kind() -> None:
    a, b = Counts(grad_lower=1, hvp=2), Counts(hvp=3, prox=1, value_upper=4)
    added = (a + b).as_dict()
    assert added == {
        "grad_lower": 1,
        "grad_upper": 0,
        "hvp": 5,
        "cross": 0,
        "prox": 1,
        "value_upper": 4,
        "value_lower": 0,
        "grad_lower_x": 0,
        "prox_lower": 0,
        "rows": 0,
    }
    assert (a + b).total == 11
    assert all(isinstance(count, int) for count in added.values())


def test_counts_are_pytrees() -> None:
    summed = jax.jit(lambda n: Counts(hvp=n) + Counts(hvp=1, cross=n))(jnp.int32(2))
    assert summed.as_dict() == (Counts(hvp=3, cross=2)).as_dict()
    assert int(summed.total) == 5


def test_methods_can_be_compiled_as_one_would_write_it() -> None:
    """`jax.jit` hashes what it compiles: regularizers and solvers have a hash, arrays have none."""
    from proxbi import AID, MCP, GradientDescent, ProxBiO

    x, y = jnp.array([0.5, 3.0]), jnp.zeros(2)
    problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2), MCP(1.0, 2.0))
    hypergradient = AID(GradientDescent(0.5, steps=1))
    solver = ProxBiO(hypergradient, 0.1)
    for _ in range(2):
        assert jnp.array_equal(jax.jit(problem.regularizer.prox)(x, 1.0), problem.regularizer.prox(x, 1.0))
        assert jnp.allclose(jax.jit(hypergradient)(problem, x, y, y).grad, 2 * (x - 2))
        state, _ = jax.jit(solver.step)(problem, solver.init(problem, x, y), jax.random.key(0))
        assert state.x.shape == (2,)


def test_an_x_that_loops_and_branches_only_hand_on_is_not_used() -> None:
    def lower(x: Any, y: Any) -> Any:
        (y, _), _ = jax.lax.scan(lambda carry, _: ((0.5 * carry[0], carry[1]), None), (y, x), length=3)
        y, _ = jax.lax.cond(y[0] > 0, lambda y, x: (y, x), lambda y, x: (-y, x), y, x)
        return jnp.sum(y**2)

    used = [_validate._used(function, jnp.ones(2), jnp.ones(2)) for function in (lower, lambda x, y: jnp.sum(x * y))]
    assert used == [([False], [True]), ([True], [True])]
