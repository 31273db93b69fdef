r"""Problems whose lower level has a prox, y*(x) = argmin_y g(x, y) + r_x(y), in closed form.

Phi is smooth where the active set of y* (its support, or its face) does not change, and has kinks where it does: the
gradients are those of the side that x is on. They come without constants: the theory assumes a smooth lower level.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.analytic._base import Data, arrays, closed_forms
from proxbi.problem import Problem
from proxbi.regularizers import L1, Box, Simplex, Zero


class Faces(NamedTuple):
    """A problem with a lower regularizer, and its closed forms.

    Example: `soft_threshold`.
    """

    problem: Problem
    """The problem, to pass to `minimize`."""
    solution: Callable[[Array], Array]
    """x -> y*(x)."""
    value: Callable[[Array], Scalar]
    """x -> Phi(x) = f(x, y*(x))."""
    gradient: Callable[[Array], Array]
    """x -> grad Phi(x), away from changes of the active set."""
    x0: Array
    """A start."""
    y0: Array
    """A start."""


def soft_threshold(size: int = 8, seed: int = 0) -> Faces:
    """F: g = sum a_i (y_i - b_i)^2 / 2 and r_x = sum e^{x_i} |y_i| (a Lasso with one penalty for each coefficient),
    f = |Cy - d|^2 / 2, h = a box.

    y*_i = sign(b_i) max(|b_i| - e^{x_i} / a_i, 0), and grad Phi_i = -sign(y*_i) e^{x_i} / a_i f_y,i on the support, 0
    off it.

    **Arguments:**

    - `size`: entries of x and of y.
    - `seed`: of the matrices.

    **Returns:** the `Problem` with its closed forms and a start, as `Faces`.

    >>> import jax
    >>> faces = soft_threshold(size=3)
    >>> jnp.linalg.norm(faces.gradient(faces.x0) - jax.grad(faces.value)(faces.x0)) < 1e-5
    Array(True, dtype=bool)
    """
    draw = np.random.default_rng(seed)
    b = draw.uniform(0.5, 2.0, size) * draw.choice([-1.0, 1.0], size)
    data = _data(draw, size, size) | arrays(a=np.geomspace(0.2, 1.0, size), b=b)
    problem = Problem(_upper, _weighted, Box(-4.0, 1.0), data, lower_regularizer=_penalties)
    return Faces(problem, *closed_forms(_upper, _shrunk, _shrunk_gradient, data), jnp.full(size, -1.5), jnp.zeros(size))


def clipped(size: int = 8, seed: int = 0) -> Faces:
    """G: g = |y - Bx|^2 / 2 and r the indicator of the box [-1, 1], f = |Cy - d|^2 / 2.

    y* = clip(Bx, -1, 1), and grad Phi = B' M f_y with M = 1 inside of the box.

    **Arguments:**

    - `size`: entries of x and of y.
    - `seed`: of the matrices.

    **Returns:** the `Problem` with its closed forms and a start, as `Faces`. Example: `soft_threshold`.
    """
    draw = np.random.default_rng(seed)
    data = _data(draw, size, size)
    forms = closed_forms(_upper, _clipped, _clipped_gradient, data)
    problem = Problem(_upper, _near, Zero(), data, lower_regularizer=Box(-1.0, 1.0))
    return Faces(problem, *forms, jnp.ones(size), jnp.zeros(size))


def on_simplex(size: int = 8, seed: int = 0) -> Faces:
    """H: g = |y - Bx|^2 / 2 and r the indicator of the probabilities, f = |Cy - d|^2 / 2.

    y* = max(Bx - tau, 0) with sum y* = 1, and grad Phi = B' P f_y, with P the projection on the vectors that are 0 off
    the support of y* and sum to 0.

    **Arguments:**

    - `size`: entries of x and of y.
    - `seed`: of the matrices.

    **Returns:** the `Problem` with its closed forms and a start, as `Faces`. Example: `soft_threshold`.
    """
    draw = np.random.default_rng(seed)
    data = _data(draw, size, size)
    forms = closed_forms(_upper, _probabilities, _simplex_gradient, data)
    problem = Problem(_upper, _near, Zero(), data, lower_regularizer=Simplex())
    return Faces(problem, *forms, jnp.ones(size) / 2, jnp.ones(size) / size)


def _data(draw: np.random.Generator, size: int, inputs: int) -> Data:
    return arrays(
        B=draw.normal(size=(size, inputs)) / np.sqrt(inputs),
        C=draw.normal(size=(size, size)) / np.sqrt(size),
        d=draw.normal(size=size),
    )


def _upper(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((data["C"] @ y - data["d"]) ** 2)


def _pull(data: Data, y: Array) -> Array:
    """f_y."""
    return data["C"].T @ (data["C"] @ y - data["d"])


def _weighted(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum(data["a"] * (y - data["b"]) ** 2)


def _penalties(x: Array) -> L1:
    return L1(jnp.exp(x))


def _shrunk(data: Data, x: Array) -> Array:
    return jnp.sign(data["b"]) * jnp.maximum(jnp.abs(data["b"]) - jnp.exp(x) / data["a"], 0)


def _shrunk_gradient(data: Data, x: Array) -> Array:
    y = _shrunk(data, x)
    return -jnp.sign(y) * jnp.exp(x) / data["a"] * _pull(data, y)


def _near(x: Array, y: Array, data: Data) -> Scalar:
    return 0.5 * jnp.sum((y - data["B"] @ x) ** 2)


def _clipped(data: Data, x: Array) -> Array:
    return jnp.clip(data["B"] @ x, -1, 1)


def _clipped_gradient(data: Data, x: Array) -> Array:
    inside = jnp.abs(data["B"] @ x) < 1
    return data["B"].T @ jnp.where(inside, _pull(data, _clipped(data, x)), 0)


# With the entries in falling order, tau of the first k is (their sum - 1) / k, and the right k is the largest whose
# last entry exceeds its tau (Held, Wolfe, Crowder, 1974).
def _probabilities(data: Data, x: Array) -> Array:
    point = data["B"] @ x
    falling = jnp.sort(point)[::-1]
    taus = (jnp.cumsum(falling) - 1) / jnp.arange(1, point.size + 1, dtype=point.dtype)
    return jnp.maximum(point - taus[jnp.sum(falling > taus) - 1], 0)


def _simplex_gradient(data: Data, x: Array) -> Array:
    y = _probabilities(data, x)
    pull, support = _pull(data, y), y > 0
    return data["B"].T @ jnp.where(support, pull - jnp.mean(pull, where=support), 0)
