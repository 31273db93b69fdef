r"""How wrong a hypergradient can be, and so how far from stationary a point.

At (x, y, v) let r_y = g_y, r_v = g_yy v - f_y, d = f_x - g_xy v, and let y* = y*(x), g_yy(y*) v* = f_y(y*), so that
grad Phi = f_x(y*) - g_xy(y*) v*. With mu-strong convexity e := |r_y| / mu >= |y - y*|, and

    g_yy(y*) (v - v*) = r_v + (g_yy(y*) - g_yy(y)) v + (f_y(y) - f_y(y*))
    d - grad Phi      = (f_x(y) - f_x(y*)) - (g_xy(y) - g_xy(y*)) v - g_xy(y*) (v - v*),

hence, with the Lipschitz constants in y of f_x, f_y, g_xy and g_yy (`f_xy`, `f_yy`, `tau`, `rho`) and `cross` >=
|g_xy|,

    |d - grad Phi| <= f_xy e + tau e |v| + cross / mu (|r_v| + rho e |v| + f_yy e).                    (guaranteed)

The actual |v| stands where the paper has M / mu. If s is in dh(x), as the prox that made x provides, then

    dist(0, d(Phi + h)(x)) <= |d + s| + |d - grad Phi|        for any h, convex or not.

Without constants the error is *estimated*: y and v are solved for to much higher accuracy, and d is compared with what
it becomes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from proxbi import _check, _compile, _tree, inexact
from proxbi._tree import Scalar
from proxbi.problem import Problem

_REFINEMENT = 1e-4  # what the refined solves leave of the errors
_PAIRS, _STEPS = 20, 10_000


@dataclass(frozen=True)
class Bounds:
    """Constants that hold between y and y*(x), at the x in question.

    **Arguments:**

    - `mu`: g(x, .) is mu-strongly convex.
    - `cross`: a bound of |g_xy|.
    - `f_xy`, `f_yy`: Lipschitz constants in y of f_x and f_y; 0 where f does not depend on x, or is linear in y.
    - `tau`, `rho`: Lipschitz constants in y of g_xy and g_yy; 0 for a g that is quadratic in y.

    >>> Bounds(mu=0.5, cross=1.0, f_yy=1.0).hypergradient_error(0.1, 0.0, 2.0)
    0.4
    """

    mu: float
    cross: float
    f_xy: float = 0.0
    f_yy: float = 0.0
    tau: float = 0.0
    rho: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            (_check.positive if name == "mu" else _check.non_negative)(name, value)

    def hypergradient_error(self, lower_residual: float, adjoint_residual: float, adjoint: float) -> float:
        """(guaranteed), from |r_y|, |r_v| and |v|."""
        e = lower_residual / self.mu
        adjoint_error = (adjoint_residual + (self.rho * adjoint + self.f_yy) * e) / self.mu
        return self.f_xy * e + self.tau * e * adjoint + self.cross * adjoint_error


class Certificate(NamedTuple):
    """What is known about a point."""

    stationarity: float
    """|d + s| + hypergradient_error: a bound of dist(0, d(Phi + h)(x)) if `guaranteed`, else an estimate of one."""
    hypergradient_error: float | None
    """Of |d - grad Phi(x)|; None where it was not looked at."""
    guaranteed: bool
    """Whether both are bounds (in exact arithmetic, for the constants given) and not estimates."""
    lower_residual: float
    """|g_y(x, y)|."""
    linear_residual: float | None
    """|g_yy v - f_y| / |f_y|; None where there is no v."""


class _Residuals(NamedTuple):
    grad: PyTree
    lower: Scalar
    adjoint: Scalar
    rhs: Scalar
    v: Scalar


def certify(
    problem: Problem, x: PyTree, y: PyTree, v: PyTree, subgradient: PyTree, bounds: Bounds | None = None
) -> Certificate:
    """The certificate of x with y ~ y*(x), v ~ g_yy^-1 f_y and a `subgradient` in dh(x); guaranteed if `bounds` are
    given.

    >>> from proxbi.analytic import scalar_problem
    >>> x, y, v = jnp.array(2.5), jnp.array(2.4), jnp.array(0.2)  # y* = 2.5, v* = 0.25, grad Phi = 0.5
    >>> certificate = certify(scalar_problem(), x, y, v, jnp.array(0.0), Bounds(mu=2.0, cross=2.0, f_yy=1.0))
    >>> print(f"|grad Phi| <= {certificate.stationarity:.2f}, error <= {certificate.hypergradient_error:.2f}")
    |grad Phi| <= 0.50, error <= 0.10
    """
    at = _residuals(problem, x, y, v)
    if bounds is None:
        error = float(_refined_change(problem, x, y, v, at.grad))
    else:
        error = bounds.hypergradient_error(float(at.lower), float(at.adjoint), float(at.v))
    gap = float(_tree.norm(_tree.axpy(1, subgradient, at.grad)))
    relative = float(at.adjoint) / float(at.rhs) if float(at.rhs) > 0 else float(at.adjoint)
    return Certificate(gap + error, error, bounds is not None, float(at.lower), relative)


@jax.jit
def _residuals(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> _Residuals:
    upper_x, upper_y = problem.grad_upper(x, y)
    grad = _tree.subtract(upper_x, problem.cross(x, y)(v))
    adjoint = _tree.norm(_tree.subtract(problem.hvp(x, y)(v), upper_y))
    return _Residuals(grad, _tree.norm(problem.grad_lower(x, y)), adjoint, _tree.norm(upper_y), _tree.norm(v))


@_compile.jit
def _refined_change(problem: Problem, x: PyTree, y: PyTree, v: PyTree, grad: PyTree) -> Scalar:
    """How far `grad` is from the hypergradient at a much better y and v."""
    accuracy = jnp.asarray(_REFINEMENT, jnp.result_type(*jax.tree.leaves(y)))
    zero, conditioner = jnp.zeros_like(accuracy), inexact.blank(problem, y, _PAIRS)
    better = inexact.solve(problem, x, y, v, accuracy, (zero, zero), conditioner, _STEPS)
    return _tree.norm(_tree.subtract(better.grad, grad))
