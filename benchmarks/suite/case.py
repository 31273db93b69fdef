"""A problem with its start and its truth: y*(x), Phi(x) and grad Phi(x), exactly or to rounding level."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.analytic import Analytic
from proxbi.linear import CG
from proxbi.newton import Newton
from proxbi.problem import Problem
from proxbi.regularizers import Regularizer
from proxbi.theory.reference import Exactly, closed_forms, computed

Data = dict[str, Array]


def _anywhere(y: PyTree) -> PyTree:
    return y


ANYWHERE = Partial(_anywhere)


class Case(NamedTuple):
    """A problem with its start."""

    problem: Problem
    x0: PyTree
    y0: PyTree
    kappa: float
    """The condition number of g_yy: as built, or that at the start."""
    kind: str
    """Of h."""
    exactly: Callable[[PyTree, PyTree], Exactly]
    """(x, y) -> y*(x), Phi(x) and grad Phi(x): in closed form, or by solves to rounding level that start at y."""
    inside: Callable[[PyTree], PyTree] = ANYWHERE
    """y -> a point near y at which g is finite."""


def analytic_case(kind: str, made: Analytic, regularizer: Regularizer | None = None) -> Case:
    """An analytic problem, with its own h or another."""
    h = made.problem.regularizer if regularizer is None else regularizer
    problem = Problem(made.problem.upper, made.problem.lower, h, made.problem.data)
    known = closed_forms(made.solution, made.value, made.gradient)
    return Case(problem, made.x0, made.y0, made.kappa, kind, Partial(_known, known))


def _known(reference: Callable[[PyTree], Exactly], x: PyTree, y: PyTree) -> Exactly:
    return reference(x)


def numerical_case(kind: str, problem: Problem, x0: PyTree, y0: PyTree) -> Case:
    """A problem without closed forms."""
    smallest, largest = curvatures(problem, x0, y0)
    return Case(problem, x0, y0, largest / smallest, kind, Partial(_solved, problem, ANYWHERE))


def curvatures(problem: Problem, x: PyTree, y: PyTree) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of g_yy: dense, which compiles faster than Lanczos' method."""
    values = np.linalg.eigvalsh(_hessian(problem, x, y))
    return float(values[0]), float(values[-1])


@jax.jit
def _hessian(problem: Problem, x: PyTree, y: PyTree) -> Array:
    (flat, unravel), product = ravel_pytree(y), problem.hvp(x, y)
    return jax.vmap(lambda v: ravel_pytree(product(unravel(v)))[0])(jnp.eye(flat.size, dtype=flat.dtype))


def positive_case(kind: str, problem: Problem, x0: PyTree, y0: PyTree, least: float) -> Case:
    """A problem without closed forms whose g is defined for y > 0 only; starts are kept above `least`."""
    case, inside = numerical_case(kind, problem, x0, y0), Partial(_at_least, least)
    guarded = Problem(problem.upper, Partial(_nan_outside, problem.lower), problem.regularizer, problem.data)
    return case._replace(inside=inside, exactly=Partial(_solved, guarded, inside))


def _at_least(least: float, y: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.maximum(leaf, least), y)


# The derivative of log y is finite for y < 0 too, and g_y = 0 may have solutions there that mean nothing. The slope of
# the root is NaN there, which Newton's method steps back from.
def _nan_outside(lower: Callable[..., Scalar], x: PyTree, y: PyTree, data: PyTree) -> Scalar:
    return lower(x, y, data) + 0.0 * _tree.total(jax.tree.map(jnp.sqrt, y))


@jax.jit
def _solved(problem: Problem, inside: Callable[[PyTree], PyTree], x: PyTree, y: PyTree) -> Exactly:
    to_rounding = CG(steps=2000, tol=1e-14)
    return computed(problem, Newton(to_rounding), inside(y), to_rounding)(x)
