r"""How stationary a point of a `Case` truly is, and a stationary point to compare with: by exact hypergradients, not by
what a method believes.

The measure is the prox-gradient mapping with the true gradient and one small fixed step for all methods,

    G(x) = |x - prox_{t h}(x - t grad Phi(x))| / t,     t = 1 / (100 L),   L = the curvature of Phi at x0,

relative to its value at x0. For convex h it is at most dist(0, d(Phi + h)(x)) and tends to it as t -> 0, whatever step
sizes a method used itself. For nonconvex h the small t keeps the prox from jumping out of a local minimum.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.linear import Direct
from proxbi.regularizers import Regularizer
from proxbi.theory.lanczos import lanczos
from proxbi.theory.reference import Exactly
from suite import Case

TARGET = 1e-6
"""The relative stationarity that all methods are run to."""


class Judge(eqx.Module):
    """`judge(x, y)` is the true stationarity of x relative to that of x0; y is where the lower solve may start.

    >>> from suite import SUITE
    >>> case = SUITE["C-10"]()
    >>> judge = Judge.of(case)
    >>> print(judge(case.x0, case.y0), judge(jnp.zeros(4), case.y0))  # the minimum is 0, and sharp
    1.0 0.0
    """

    exactly: Any
    regularizer: Regularizer
    step: Scalar
    start: Scalar
    """G(x0)."""
    ceiling: Scalar
    """An objective above which no point is called stationary."""

    @classmethod
    def of(cls, case: Case, solution: PyTree = None) -> "Judge":
        """The judge of a case. With a `solution`, points must also gain 99 % of what it gains over x0: far out, where
        sigmoids are flat, almost any point of hyper-cleaning is stationary.
        """
        step = 0.01 / curvature(case, case.x0)
        regularizer = case.problem.regularizer
        at_start = case.exactly(case.x0, case.y0)
        start = _mapping(regularizer, step, case.x0, at_start.gradient)
        ceiling = jnp.full_like(start, jnp.inf)
        if solution is not None:
            first = at_start.value + regularizer.value(case.x0)
            last = case.exactly(solution, case.y0).value + regularizer.value(solution)
            ceiling = last + 0.01 * jnp.abs(first - last)
        return cls(case.exactly, regularizer, step, start, ceiling)

    @jax.jit
    def __call__(self, x: PyTree, y: PyTree) -> Scalar:
        """G(x) / G(x0); infinity above the ceiling."""
        at = self.exactly(x, y)
        low = at.value + self.regularizer.value(x) <= self.ceiling
        return jnp.where(low, self.measure(x, at.gradient), jnp.inf)

    def measure(self, x: PyTree, gradient: PyTree) -> Scalar:
        """G(x) / G(x0), where the true gradient of Phi at x is known."""
        return _mapping(self.regularizer, self.step, x, gradient) / self.start


def _mapping(regularizer: Regularizer, step: Scalar, x: PyTree, gradient: PyTree) -> Scalar:
    moved = regularizer.prox(_tree.axpy(-step, gradient, x), step)
    return _tree.norm(_tree.subtract(x, moved)) / step


def curvature(case: Case, x: PyTree) -> Scalar:
    """An estimate of the largest |eigenvalue| of the Hessian of Phi at x: Lanczos on differences of exact gradients."""
    size = 1e-4 * (1 + _tree.norm(x))
    return lanczos(Partial(_difference, case.exactly, x, case.y0, size), x, 12, jax.random.key(0)).magnitude


def _difference(exactly: Any, x: PyTree, y: PyTree, size: Scalar, direction: PyTree) -> PyTree:
    both = jnp.stack([size, -size])
    gradients = jax.lax.map(lambda step: exactly(_tree.axpy(step, direction, x), y).gradient, both)
    return jax.tree.map(lambda leaf: (leaf[0] - leaf[1]) / (2 * size.astype(leaf.dtype)), gradients)


class Reference(NamedTuple):
    """A stationary point, and how stationary it is by exact hypergradients."""

    x: PyTree
    objective: float
    """Phi(x) + h(x)."""
    stationarity: float
    """`Judge`'s, relative to x0."""


# Proximal Newton with the exact Hessian H of Phi. Each step solves, for the modified Hessian B (|eigenvalues| of H,
# plus a damping that grows while the objective would rise),
#
#     min_u  <grad Phi, u> + <u, B u> / 2 + h(x + u)
#
# by semismooth Newton on its prox-gradient step: with w = x + u - t (grad Phi + B u) and P the derivative of prox at w
#
#     (1 - P (1 - t B)) du = prox(w) - x - u.
#
# Slow and dense, and shares no code with the solvers that are compared.
def reference(case: Case, tol: float = 1e-10, steps: int = 100) -> Reference:
    """A stationary point of `case` near where descent from x0 leads, to a relative `tol` or as close as rounding lets.

    >>> from suite import SUITE
    >>> found = reference(SUITE["A-2"]())
    >>> found.stationarity < 1e-10
    True
    """
    local = _Local(case, Judge.of(case))
    at = local(np.asarray(ravel_pytree(case.x0)[0]), case.y0)
    damping = 0.0
    for _ in range(steps):
        values, vectors = np.linalg.eigh(at.hessian)
        scale = float(np.abs(values).max())
        curvatures = np.maximum(np.abs(values), 1e-12 * scale) + damping
        trial = local.subproblem(at, (vectors * curvatures) @ vectors.T, 1 / (scale + damping))
        new = None if trial is None else local(trial, at.y)
        if new is not None and new.objective <= at.objective + 1e-14 * abs(at.objective):
            moved, at = not np.array_equal(new.x, at.x), new
            damping = damping / 10 if damping > 1e-8 * scale else 0.0
            if at.stationarity <= tol or not moved:
                break
        else:
            damping = max(4 * damping, 1e-3 * scale)
    return Reference(local.unravel(jnp.asarray(at.x)), at.objective, at.stationarity)


class _Point(NamedTuple):
    x: np.ndarray
    y: PyTree
    objective: float
    stationarity: float
    gradient: np.ndarray
    hessian: np.ndarray


class _Local:
    """Values and derivatives of a case at flat vectors x, on the host."""

    def __init__(self, case: Case, judge: Judge):
        h, problem = case.problem.regularizer, case.problem
        self.unravel = unravel = ravel_pytree(case.x0)[1]

        def derivatives(x: Array, y: PyTree) -> tuple[PyTree, Scalar, Scalar, Array, Array]:
            tree = unravel(x)
            at = case.exactly(tree, y)
            near = _gradient_near(problem, tree, at)
            hessian = jax.jacfwd(lambda z: ravel_pytree(near(unravel(z)))[0])(x)
            stationarity = _mapping(h, judge.step, tree, at.gradient) / judge.start
            gradient = ravel_pytree(at.gradient)[0]
            return at.solution, at.value + h.value(tree), stationarity, gradient, (hessian + hessian.T) / 2

        def prox(z: Array, step: Array) -> Array:
            return ravel_pytree(h.prox(unravel(z), step))[0]

        self._derivatives = jax.jit(derivatives)
        self._prox, self._slope = jax.jit(prox), jax.jit(jax.jacfwd(prox))

    def __call__(self, x: np.ndarray, y: PyTree) -> _Point:
        y, objective, stationarity, gradient, hessian = self._derivatives(jnp.asarray(x), y)
        return _Point(x, y, float(objective), float(stationarity), np.asarray(gradient), np.asarray(hessian))

    def subproblem(self, at: _Point, metric: np.ndarray, step: float) -> np.ndarray | None:
        """Where the model is smallest; None if semismooth Newton cycles, which more damping cures."""
        x, z, best, least, first = at.x, at.x, at.x, np.inf, 0.0
        for k in range(50):
            forward = jnp.asarray(z - step * (at.gradient + metric @ (z - x)))
            moved = np.asarray(self._prox(forward, step))
            size = float(np.linalg.norm(moved - z))
            first = first if k else size
            if size < least:
                best, least = moved, size
            if size <= 1e-15 * np.linalg.norm(z):
                break
            slope = np.asarray(self._slope(forward, step))
            jacobian = np.eye(len(x)) - slope @ (np.eye(len(x)) - step * metric)
            z = z + np.linalg.lstsq(jacobian, moved - z, rcond=1e-14)[0]
        return best if least <= 1e-6 * first else None


# y and v as functions of x near a point where they are known: one Newton step each with the Hessian frozen there. Their
# values and first derivatives at that point are those of y*(x) and v*(x), hence so is the derivative of the gradient.
def _gradient_near(problem: Any, x: PyTree, at: Exactly) -> Any:
    frozen, dense = problem.hvp(x, at.solution), Direct()

    def solve(b: PyTree) -> PyTree:
        return dense.solve(frozen, b)[0]

    adjoint = solve(problem.grad_upper(x, at.solution)[1])

    def gradient(z: PyTree) -> PyTree:
        y = _tree.subtract(at.solution, solve(problem.grad_lower(z, at.solution)))
        upper_x, upper_y = problem.grad_upper(z, y)
        v = _tree.subtract(adjoint, solve(_tree.subtract(problem.hvp(z, y)(adjoint), upper_y)))
        return _tree.subtract(upper_x, problem.cross(z, y)(v))

    return gradient
