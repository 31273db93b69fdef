r"""Problems for `stochastic.py`, after benchopt/benchmark_bilevel: simulated quadratics, and logistic regression with a
penalty for each coefficient. Each knows its exact hypergradient, by which points are judged.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi import Problem, Regularizer, Rows, Zero


class Case(NamedTuple):
    """A problem, where to start, and |d + s| at x by exact solves, given a subgradient of h there."""

    name: str
    problem: Problem
    x0: Array
    y0: Array
    hypergradient: Callable[[Array], Array]


MU, CROSS = 0.1, 0.1  # those of benchmark_bilevel


# Row i of a level contributes <z, y>^2 / 2 + <p, x> <q, y> + <c, x>^2 / 2 + <b, y> + <d, x>: the Hessians are means of
# products of one vector with itself, with spectra from mu to 1 (0 once in x), and a cross term of size up to 0.1.
def quadratic(
    seed: int,
    rows: tuple[int, int],
    dims: tuple[int, int],
    h: Regularizer | None = None,
    *,
    mu: float = MU,
    cross: float = CROSS,
    noise: float = 1.0,
) -> Case:
    """Simulated quadratics: `rows` and `dims` of the upper level and of the lower one; `noise` is the size of b, d."""
    draw = np.random.default_rng([15, seed])
    made = [_quadratic_rows(draw, count, *dims, mu, cross, noise) for count in rows]
    data = Rows(upper=made[0], lower=made[1])
    problem = Problem(_quadratic_value, _quadratic_value, Zero() if h is None else h, data)
    upper, lower = (_means(level.rows) for level in (data.upper, data.lower))

    def hypergradient(x: Array) -> Array:
        y = -jnp.linalg.solve(lower["yy"], lower["xy"].T @ x + lower["y"])
        v = jnp.linalg.solve(lower["yy"], upper["yy"] @ y + upper["xy"].T @ x + upper["y"])
        return upper["xx"] @ x + upper["xy"] @ y + upper["x"] - lower["xy"] @ v

    return Case("quadratic", problem, jnp.zeros(dims[0]), jnp.zeros(dims[1]), jax.jit(hypergradient))


def _quadratic_rows(
    draw: np.random.Generator, rows: int, dim_x: int, dim_y: int, mu: float, cross: float, noise: float
) -> dict[str, np.ndarray]:
    y_root = _rotated(draw, np.logspace(np.log10(mu) / 2, 0, dim_y))
    x_root = _rotated(draw, np.r_[0, np.logspace(np.log10(mu) / 2, 0, dim_x - 1)])
    left, _, right = np.linalg.svd(draw.normal(size=(dim_x, dim_y)), full_matrices=False)
    common = draw.normal(size=(rows, min(dim_x, dim_y)))
    size = min(dim_x, dim_y)
    sizes = np.logspace(np.log10(min(mu, cross)), np.log10(cross), size)
    return {
        "z": draw.normal(size=(rows, dim_y)) @ y_root,
        "c": draw.normal(size=(rows, dim_x)) @ x_root,
        "p": common * sizes @ left.T,
        "q": common @ right,
        "b": noise * draw.normal(size=(rows, dim_y)),
        "d": noise * draw.normal(size=(rows, dim_x)),
    }


def _rotated(draw: np.random.Generator, spectrum: np.ndarray) -> np.ndarray:
    basis = np.linalg.qr(draw.normal(size=(len(spectrum), len(spectrum))))[0]
    return basis * spectrum @ basis.T


def _quadratic_value(x: Array, y: Array, batch: dict[str, Array]) -> Array:
    bent = (batch["z"] @ y) ** 2 + (batch["c"] @ x) ** 2
    return jnp.mean(bent / 2 + (batch["p"] @ x) * (batch["q"] @ y) + batch["b"] @ y + batch["d"] @ x)


def _means(rows: dict[str, Array]) -> dict[str, Array]:
    n = len(rows["z"])
    products = {"yy": ("z", "z"), "xx": ("c", "c"), "xy": ("p", "q")}
    means = {name: rows[a].T @ rows[b] / n for name, (a, b) in products.items()}
    return means | {"y": jnp.mean(rows["b"], axis=0), "x": jnp.mean(rows["d"], axis=0)}


def logistic(seed: int, rows: tuple[int, int], dim: int, h: Regularizer | None = None) -> Case:
    """Logistic regression with a penalty e^x_j / 2 on coefficient j, as for ijcnn1, on correlated features."""
    draw = np.random.default_rng([16, seed])
    mixing = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim))))
    truth = draw.choice([-1.0, 1.0], dim) * draw.uniform(0.2, 1.0, dim)  # none is 0: its best penalty would be infinite

    def level(count: int) -> dict[str, np.ndarray]:
        features = draw.normal(size=(count, dim)) @ mixing.T
        labels = np.where(features @ truth + draw.logistic(size=count) > 0, 1.0, -1.0)
        return {"features": features, "labels": labels}

    data = Rows(upper=level(rows[0]), lower=level(rows[1]))
    problem = Problem(_logistic_upper, _logistic_lower, Zero() if h is None else h, data)

    def hypergradient(x: Array) -> Array:
        def newton(_: int, y: Array) -> Array:
            hessian = jax.hessian(problem.value_lower, argnums=1)(x, y)
            return y - jnp.linalg.solve(hessian, problem.grad_lower(x, y))

        y = jax.lax.fori_loop(0, EXACT_NEWTON_STEPS, newton, jnp.zeros(dim))
        f_x, f_y = problem.grad_upper(x, y)
        v = jnp.linalg.solve(jax.hessian(problem.value_lower, argnums=1)(x, y), f_y)
        return f_x - problem.cross(x, y)(v)

    return Case("logistic", problem, jnp.full(dim, FIRST_PENALTY), jnp.zeros(dim), jax.jit(hypergradient))


EXACT_NEWTON_STEPS = 12  # from 0; quadratic convergence needs about 6
FIRST_PENALTY = 0.0  # e^0: as strong as the loss itself


def _logistic_upper(x: Array, y: Array, batch: dict[str, Array]) -> Array:
    return jnp.mean(jax.nn.softplus(-batch["labels"] * (batch["features"] @ y)))


def _logistic_lower(x: Array, y: Array, batch: dict[str, Array]) -> Array:
    return _logistic_upper(x, y, batch) + jnp.sum(jnp.exp(x) * y**2) / 2
