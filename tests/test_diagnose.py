"""`check`: a good problem has no faults, and each defect is found and named."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxbi import L1, Box, Problem, check
from proxbi.analytic import ridge_hyperparameters, smooth_nonquadratic

REPEATED = [pytest.mark.slow, pytest.mark.hours]  # what others of their kind show in every run
X, Y = np.array([0.5, 1.0]), np.zeros(2)


def upper(x: Any, y: Any) -> Any:
    return jnp.sum((y - 2) ** 2)


def lower(x: Any, y: Any) -> Any:
    return jnp.sum((y - x) ** 2) + 0.1 * jnp.sum(y**4)


def page(problem: Problem, x: Any = X, y: Any = Y) -> str:
    """The page, after what holds for every one of them."""
    found = check(problem, x, y)
    text = str(found)
    lines = text.splitlines()
    assert found.ok == ("FAULT" not in text)
    assert len(found.faults) == text.count("FAULT ")
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 120
    return text


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(ridge_hyperparameters(100.0), id="ridge"),
        pytest.param(smooth_nonquadratic(1000.0), id="smooth", marks=[pytest.mark.slow, pytest.mark.hours]),
    ],
)
def test_a_good_problem_has_no_fault(made: Any) -> None:
    text = page(made.problem, made.x0, made.y0)
    assert text.startswith("No fault was seen.")
    assert "note" not in text
    assert text.count("right.") == 6


@pytest.mark.slow
def test_pytrees_and_float32_are_fine() -> None:
    problem = Problem(
        lambda x, y: jnp.sum((y["a"] - 2) ** 2) + y["b"][0] ** 2 + x["own"] ** 2,
        lambda x, y: jnp.sum((y["a"] - x["to"]) ** 2) + jnp.sum((y["b"][0] - x["own"]) ** 2),
    )
    x = {"to": X.astype(np.float32), "own": np.float32(1.5)}
    text = page(problem, x, {"a": Y.astype(np.float32), "b": [np.float32(0)]})
    assert text.startswith("No fault was seen.")
    assert "float32" in text


# --- oracles of one's own ---------------------------------------------------------------------------------------------


class WrongHvp(Problem):
    def hvp(self, x: Any, y: Any) -> Any:
        exact = super().hvp(x, y)
        return lambda v: 2 * exact(v)


class SkewHvp(Problem):
    def hvp(self, x: Any, y: Any) -> Any:
        exact = super().hvp(x, y)
        return lambda v: exact(v) + jnp.array([v[1], -v[0]])


class WrongCross(Problem):
    def cross(self, x: Any, y: Any) -> Any:
        exact = super().cross(x, y)
        return lambda v: -exact(v)


class WrongLower(Problem):
    def grad_lower(self, x: Any, y: Any) -> Any:
        return super().grad_lower(x, y) + 0.1


class WrongUpper(Problem):
    def grad_upper(self, x: Any, y: Any) -> Any:
        by_x, by_y = super().grad_upper(x, y)
        return by_x + 1, by_y / 2


class WrongLowerX(Problem):
    def grad_lower_x(self, x: Any, y: Any) -> Any:
        return 3 * super().grad_lower_x(x, y)


class WrongTogether(Problem):
    def value_and_grad_upper(self, x: Any, y: Any) -> Any:
        value, (by_x, by_y) = super().value_and_grad_upper(x, y)
        return value, (by_x, 1.1 * by_y)


class WrongPreconditioner(Problem):
    def preconditioner(self, x: Any, y: Any) -> Any:
        return lambda r: -r


OWN = {
    WrongHvp: ["g_yy v (hvp, yours)"],
    SkewHvp: ["not symmetric, so not a Hessian"],
    WrongCross: ["g_xy v (cross, yours)"],
    WrongLower: ["g_y (grad_lower, yours)"],
    WrongUpper: ["f_x (grad_upper, yours)", "f_y (grad_upper, yours)"],
    WrongLowerX: ["g_x (grad_lower_x, yours)"],
    WrongTogether: ["value_and_grad_upper, yours"],
    WrongPreconditioner: ["not symmetric and positive definite"],
}


QUICK_OWN = (WrongHvp, WrongCross, SkewHvp)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [pytest.param(made, marks=[] if made in QUICK_OWN else REPEATED, id=made.__name__) for made in OWN],
)
def test_a_wrong_oracle_is_named(made: type[Problem]) -> None:
    text = page(made(upper, lower))
    for words in OWN[made]:
        assert any(words in line and line.startswith("FAULT") for line in text.splitlines()), text


@pytest.mark.slow
def test_right_oracles_of_ones_own_are_right() -> None:
    class Right(Problem):
        def hvp(self, x: Any, y: Any) -> Any:
            return lambda v: (2 + 1.2 * y**2) * v

        def preconditioner(self, x: Any, y: Any) -> Any:
            return lambda r: r / (2 + 1.2 * y**2)

    text = page(Right(upper, lower))
    assert text.startswith("No fault was seen.")
    assert "g_yy v (hvp, yours)" in text


# --- each defect ------------------------------------------------------------------------------------------------------

Case = tuple[Callable[..., Any], Callable[..., Any], Any, Any, list[str]]


def leaky(y: Any, x: Any) -> Any:
    return jnp.sum((y - 2) ** 2)


DEFECTS: dict[str, Case] = {
    "not convex": (
        upper,
        lambda x, y: -jnp.sum((y - x) ** 2),
        X,
        Y,
        ["not convex in y there", "above 1 *"],
    ),
    "convex, not strongly": (
        upper,
        lambda x, y: (y[0] + y[1] - x[0]) ** 2 + x[1] * y[0],
        X,
        Y,
        ["lower is not strongly convex"],
    ),
    "only far from y0": (
        upper,
        lambda x, y: jnp.sum(jnp.cos(y + x)),
        X,
        Y,
        ["curvature at y0", "not convex"],
    ),
    "no minimiser": (
        upper,
        lambda x, y: jnp.sum(jnp.logaddexp(0.0, -y * jnp.exp(x))),
        X,
        Y,
        ["y runs away", "lower has no minimiser"],
    ),
    "kinks": (upper, lambda x, y: lower(x, y) + jnp.sum(jnp.abs(y - 1)), X, Y, ["it is not smooth. Smooth it"]),
    "hinge": (upper, lambda x, y: lower(x, y) + 9 * jnp.sum(jax.nn.relu(1 - y)), X, Y, ["not solved", "not smooth"]),
    "outside, g": (upper, lambda x, y: lower(x, y) - jnp.sum(jnp.log(1 + y)), X, Y - 2, ["g(x0, y0)", "not finite"]),
    "outside, f": (lambda x, y: -jnp.sum(jnp.log(y - 5)), lower, X, Y, ["f(x0, y0)", "not solved", "became NaN"]),
    "close to the end": (
        upper,
        lambda x, y: lower(x, y) - jnp.sum(jnp.log(y)),
        X,
        Y + 1e-9,
        ["No fault was seen."],
    ),
    "at the end": (upper, lambda x, y: lower(x, y) + jnp.sum(jnp.sqrt(1e-5 - y**2)), X, Y, ["moves by 1% leave"]),
    "x squared at 0": (upper, lambda x, y: jnp.sum((y - x**2) ** 2), X * 0, Y, ["|grad Phi| = 0", "x0 is flat"]),
    "dead relu": (upper, lambda x, y: jnp.sum((y - jax.nn.relu(x)) ** 2), X - 5, Y, ["x0 is flat: a dead relu"]),
    "one dead leaf": (
        upper,
        lambda x, y: jnp.sum((y - x["a"] - jax.nn.relu(x["b"])) ** 2),
        {"a": X, "b": X - 5},
        Y,
        ["nothing changes with x['b'] at x0"],
    ),
    "swapped, by name": (leaky, lower, X, Y, ["upper(y, x): its arguments are swapped"]),
    "swapped": (lambda a, b: jnp.sum((a - 2) ** 2), lower, X, Y, ["ignores y, so that nothing depends on the lower"]),
    "lower ignores x": (
        lambda x, y: jnp.sum((y - x) ** 2),
        lambda x, y: jnp.sum(y**2),
        X,
        Y,
        ["ignores x, so that y*"],
    ),
    "lower ignores a leaf of y": (
        lambda x, y: jnp.sum((y["a"] - 2) ** 2 + y["b"]),
        lambda x, y: jnp.sum((y["a"] - x) ** 2),
        X,
        {"a": Y, "b": Y},
        ["ignores y['b']: it has no unique minimiser"],
    ),
    "an x that nobody uses": (
        upper,
        lambda x, y: jnp.sum((y - x["a"]) ** 2),
        {"a": X, "b": X},
        Y,
        ["both ignore x['b']"],
    ),
    "not a scalar": (lambda x, y: y - 2, lower, X, Y, ["upper must return a scalar"]),
    "shapes": (upper, lambda x, y: jnp.sum(x @ y), np.ones(3), Y, ["lower fails on the given x0, y0"]),
    "an error of its own": (upper, lambda x, y: {}["rate"], X, Y, ["lower fails", "'rate'"]),
    "mixed dtypes": (upper, lower, X, Y.astype(np.float32), ["give all of x0 and y0 one dtype"]),
}


QUICK = ("not convex", "hinge", "outside, g", "dead relu", "swapped, by name", "not a scalar", "shapes", "mixed dtypes")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else REPEATED) for name in DEFECTS],
)
def test_the_defect_is_named(name: str) -> None:
    f, g, x, y, words = DEFECTS[name]
    text = page(Problem(f, g), x, y)
    assert ("FAULT" in text) == (name != "close to the end")
    joined = " ".join(text.split())
    for phrase in words:
        assert phrase in joined, text


def test_an_infeasible_start_is_named() -> None:
    text = page(Problem(upper, lower, Box(2.0, 3.0)))
    assert "FAULT h(x0)" in text
    assert "regularizer.prox(x0, 1.0)" in text


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_float32_is_advised_against_where_it_will_not_do() -> None:
    curvatures = np.geomspace(1e-6, 1, 4).astype(np.float32)
    problem = Problem(lambda x, y, c: jnp.sum((y - 2) ** 2), lambda x, y, c: jnp.sum(c * (y - x) ** 2), data=curvatures)
    text = page(problem, np.ones(4, np.float32), np.zeros(4, np.float32))
    assert "note  conditioning" in text
    assert "jax_enable_x64" in text
    double = jax.tree.map(lambda a: jnp.asarray(a, float), problem)
    assert "the precision will do" in page(double, np.ones(4), np.zeros(4))


@pytest.mark.slow
def test_a_custom_derivative_that_is_wrong_is_found() -> None:
    @jax.custom_jvp
    def square(y: Any) -> Any:
        return y**2

    square.defjvp(lambda at, along: (square(*at), 3 * at[0] * along[0]))
    text = page(Problem(lambda x, y: jnp.sum(square(y - 2)), lower))
    assert any(line.startswith("FAULT f_y") for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((upper, X, Y), "problem must be a proxbi Problem"), ((Problem(upper, lower), None, Y), "x0 is an empty pytree")],
)
def test_what_is_no_problem_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check(*arguments)


# --- lower regularizers -----------------------------------------------------------------------------------------------


def lasso(x: Any, y: Any) -> Any:
    """More coefficients than rows; x is in the penalty only."""
    return (y @ jnp.array([1.0, 2.0]) - 3) ** 2


@pytest.mark.slow
def test_a_lasso_is_no_fault() -> None:
    """It was: "lower ignores x", and "not strongly convex"."""
    problem = Problem(upper, lasso, lower_regularizer=lambda x: L1(jnp.exp(x)))
    text = page(problem)
    assert text.startswith("No fault was seen.")
    assert "along the active face" in text
    assert "L1, next change at" in text
    assert "away from changes" in text


@pytest.mark.slow
def test_a_change_of_the_active_set_is_noted() -> None:
    problem = Problem(upper, lambda x, y: jnp.sum((y - 2) ** 2) / 2, lower_regularizer=lambda x: L1(jnp.exp(x)))
    text = page(problem, np.full(2, np.log(2.0)))
    assert "at a change of it: the hypergradient is that of one side" in " ".join(text.split())
