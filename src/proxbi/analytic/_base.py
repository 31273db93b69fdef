"""What every analytic problem is made of."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

from proxbi._tree import Scalar
from proxbi.problem import Problem
from proxbi.theory.constants import Constants, SharpConstants

Data = dict[str, Array]


class Analytic(NamedTuple):
    """A problem, its closed forms and its constants.

    Example: `spectral_quadratic`.
    """

    problem: Problem
    """The problem, to pass to `minimize`."""
    solution: Callable[[Array], Array]
    """x -> y*(x)."""
    value: Callable[[Array], Scalar]
    """x -> Phi(x) = f(x, y*(x))."""
    gradient: Callable[[Array], Array]
    """x -> grad Phi(x)."""
    x0: Array
    """A start."""
    y0: Array
    """A start."""
    kappa: float
    """The condition number of g in y."""
    constants: Constants
    """The paper's lumped constants."""
    sharp: SharpConstants
    """Those of the sharper form."""
    floor: float
    """A lower bound of Phi + h."""
    region: float = float("inf")
    """The constants hold where no entry of y exceeds this."""


def _value(upper: Callable[..., Scalar], solution: Callable[..., Array], data: Data, x: Array) -> Scalar:
    return upper(x, solution(data, x), data)


def closed_forms(
    upper: Callable[..., Scalar], solution: Callable[..., Array], gradient: Callable[..., Array], data: Data
) -> tuple[Callable[[Array], Array], Callable[[Array], Scalar], Callable[[Array], Array]]:
    """y*, Phi and grad Phi as pytrees with the data inside."""
    value = Partial(_value, Partial(upper), Partial(solution), data)
    return Partial(solution, data), value, Partial(gradient, data)


def arrays(**values: "float | np.ndarray") -> Data:
    """The data of a problem, as JAX arrays."""
    return {name: jnp.asarray(value) for name, value in values.items()}


def spectral(draw: np.random.Generator, size: int, kappa: float) -> np.ndarray:
    """A random symmetric matrix with the spectrum spaced geometrically in [1/kappa, 1]."""
    rotation = np.linalg.qr(draw.normal(size=(size, size)))[0]
    a = rotation @ np.diag(np.geomspace(1 / kappa, 1, size)) @ rotation.T
    return (a + a.T) / 2


def norm(matrix: np.ndarray) -> float:
    """The spectral norm."""
    return float(np.linalg.norm(matrix, 2))
