r"""Bounds on the error of a hypergradient, and so on how far a point is from stationary.

At (x, y, v) let r_y = g_y, r_v = g_yy v - f_y, d = f_x - g_xy v, and let y* = y*(x), g_yy(y*) v* = f_y(y*), so that
grad Phi = f_x(y*) - g_xy(y*) v*. With mu-strong convexity e := |r_y| / mu >= |y - y*|, and

    g_yy(y*) (v - v*) = r_v + (g_yy(y*) - g_yy(y)) v + (f_y(y) - f_y(y*))
    d - grad Phi      = (f_x(y) - f_x(y*)) - (g_xy(y) - g_xy(y*)) v - g_xy(y*) (v - v*),

hence, with the Lipschitz constants in y of f_x, f_y, g_xy and g_yy (`f_xy`, `f_yy`, `tau`, `rho`) and `cross` >=
|g_xy|,

    |d - grad Phi| <= f_xy e + tau e |v| + cross / mu (|r_v| + rho e |v| + f_yy e).                    (guaranteed)

The actual |v| replaces M / mu of the paper. If s is in dh(x), as the prox that made x provides, then

    dist(0, d(Phi + h)(x)) <= |d + s| + |d - grad Phi|        for any h, convex or not.

**With a lower regularizer** r the same holds on the active face, with the normal map N for g_y, the face Hessian A for
g_yy and the adjoint of `_lower_level.py`: |y - y*| <= |N| / mu needs no more, but the bound of d assumes that y and y*
have the same active set. `active_set_margin` is the distance to its next change.

Without constants the error is *estimated*: y and v are solved for to much higher accuracy, and d is compared with the
new d.

**Rounding.** The computed g_y, g_yy v - f_y and d differ from the true ones by rounding. Near y*, g_y is a sum of terms
as large as g_yy y that cancel: a few units of rounding of these are added to each residual.

**The subgradient must belong to x.** A prox step gives an s in dh at the point it arrives at. For any other x,
`nearest` finds one: p = prox_{t h}(x - t d), s = (x - t d - p) / t is in dh(p), and repeating p = prox_{t h}(x + t s),
s = (x + t s - p) / t brings p to x. Where p = x, s is in dh(x), whatever h is; as t is small, d + s is close to the
shortest element of d + dh(x).
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _check, _compile, _tree
from proxbi._lower_level import first_probe, linearised, look, margin
from proxbi._tree import Scalar
from proxbi.hypergradient import Evaluation, Implicit, Outcome
from proxbi.hypergradient._controlled import ratio
from proxbi.problem import Counts, Problem
from proxbi.regularizers import Regularizer, Zero

_REFINEMENT = 1e-4  # the part of the errors that the refined solves leave
_ROUNDING = 8  # units of rounding by which a sum of many terms may be off
_REPEATS = 2  # the second brings p to x up to the square of a short step
_SHORTER, _MOST_LOOKS = 0.1, 10  # the factor between the steps that `nearest` tries, and how many


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

    @classmethod
    def of_traced(cls, *values: Any) -> "Bounds":
        """Bounds whose values are being traced, and were checked where they were concrete."""
        made = object.__new__(cls)
        for field, value in zip(fields(cls), values, strict=True):
            object.__setattr__(made, field.name, value)
        return made

    def hypergradient_error(self, lower_residual: Any, adjoint_residual: Any, adjoint: Any) -> Any:
        """(guaranteed), from |r_y|, |r_v| and |v|."""
        e = lower_residual / self.mu
        adjoint_error = (adjoint_residual + (self.rho * adjoint + self.f_yy) * e) / self.mu
        return self.f_xy * e + self.tau * e * adjoint + self.cross * adjoint_error


class Certificate(NamedTuple):
    """How close a point is to stationary, and the errors behind it. Example: `certify`."""

    stationarity: Scalar
    """|d + s| + hypergradient_error: a bound of dist(0, d(Phi + h)(x)) if `guaranteed`, else an estimate of one."""
    relative: Scalar
    """The same, relative to the scale that `rtol` refers to; NaN if the solver has none."""
    hypergradient_error: Scalar | None
    """Of |d - grad Phi(x)|; None if it was not estimated."""
    lower_residual: Scalar
    """|g_y(x, y)|."""
    linear_residual: Scalar | None
    """|g_yy v - f_y| / |f_y|; None without v."""
    y: PyTree
    """The approximate lower solution that was used."""
    counts: Counts
    """What it cost."""
    guaranteed: bool = False
    """Whether the bounds are bounds (for the constants given) and not estimates."""
    active_set_margin: Scalar | float = float("inf")
    """How far z = y - s g_y, at which the prox of the lower regularizer is taken, is from the next change of the active
    set, relative to |z|, with s the inverse of the largest curvature: the certificate holds on this side of it.
    Infinite without a lower regularizer; NaN if unknown."""
    rows: int = 0
    """Rows of each level used for an estimate; 0 if all were used, or if there are none."""
    standard_error: Scalar | float = 0.0
    """Of |d + s|, for an estimate from some of the rows; the stationarity is two of these above it."""


def certify(
    problem: Problem, x: PyTree, y: PyTree, v: PyTree, subgradient: PyTree, bounds: Bounds | None = None
) -> Certificate:
    """The certificate of a point: dist(0, d(Phi + h)(x)) <= |d + s| + |d - grad Phi(x)|, see `Certificate`.

    **Arguments:**

    - `problem`: the problem.
    - `x`: the upper variable.
    - `y`: close to the lower solution y*(x).
    - `v`: close to the adjoint g_yy^-1 f_y.
    - `subgradient`: an element s of dh(x).
    - `bounds`: constants of the problem. With them the certificate is guaranteed; without, the error is estimated, by
      solving for y and v much more accurately.

    **Returns:** the `Certificate`.

    >>> from proxbi.analytic import scalar_problem
    >>> x, y, v = jnp.array(2.5), jnp.array(2.4), jnp.array(0.2)  # y* = 2.5, v* = 0.25, grad Phi = 0.5
    >>> certificate = certify(scalar_problem(), x, y, v, jnp.array(0.0), Bounds(mu=2.0, cross=2.0, f_yy=1.0))
    >>> print(f"|grad Phi| <= {certificate.stationarity:.2f}, error <= {certificate.hypergradient_error:.2f}")
    |grad Phi| <= 0.50, error <= 0.10
    """
    at = residuals(problem, x, y, v)
    counts = at.counts
    if bounds is None:
        error, cost = _refined_change(problem, x, y, v, at.grad)
        error, counts = error + at.rounding, counts + cost
    else:
        error = bounds.hypergradient_error(at.lower, at.adjoint, at.v) + at.rounding
    gap = _tree.norm(_tree.axpy(1, subgradient, at.grad))
    relative, unknown = ratio(at.adjoint, at.rhs), jnp.full_like(gap, jnp.nan)
    return Certificate(gap + error, unknown, error, at.lower, relative, y, counts, bounds is not None, at.margin)


class Residuals(NamedTuple):
    """The residuals of the equations at a point, each with the rounding that may hide in it."""

    grad: PyTree
    lower: Scalar
    adjoint: Scalar
    rhs: Scalar
    v: Scalar
    rounding: Scalar
    """Of grad."""
    margin: Scalar
    """Of the active set of the lower level."""
    counts: Counts
    """What it cost."""


@jax.jit
def residuals(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> Residuals:
    """The residuals of both equations at (x, y, v), recomputed."""
    at, _, cost = look(problem, x, y, first_probe(problem, y))
    here = linearised(problem, x, at)
    _, (upper_x, upper_y) = here.upper()
    projected, rhs = here.project(v), _tree.norm(upper_y)
    implicit = here.cross(projected)
    adjoint = _tree.norm(_tree.subtract(here.product(v), upper_y))
    unit = _ROUNDING * float(jnp.finfo(rhs.dtype).eps)
    return Residuals(
        grad=_tree.subtract(upper_x, implicit),
        lower=at.residual + unit * _tree.norm(here.product(at.y)),
        adjoint=adjoint + unit * rhs,
        rhs=rhs,
        v=_tree.norm(projected),
        rounding=unit * (_tree.norm(upper_x) + _tree.norm(implicit)),
        margin=margin(problem, x, at),
        counts=cost + here.counts + here.made + Counts(grad_upper=1, hvp=2),
    )


@_compile.jit
def _refined_change(problem: Problem, x: PyTree, y: PyTree, v: PyTree, grad: PyTree) -> tuple[Scalar, Counts]:
    """How far `grad` is from the hypergradient at a much better y and v."""
    solve = Implicit()
    last = solve.init(problem, x, y)._replace(v=v, grad=grad)
    better = solve(problem, x, last, _tree.zeros_like(x), jnp.asarray(_REFINEMENT))
    change = _tree.norm(_tree.subtract(better.grad, grad)) + better.error
    return jnp.where(better.outcome <= Outcome.ROUGH, change, jnp.inf), better.counts


def nearest(
    h: Regularizer, x: PyTree, grad: PyTree, length: Scalar
) -> tuple[PyTree, Bool[Array, ""], Scalar, Int[Array, ""] | int]:
    """s in dh(x) with d + s nearly as short as possible, whether it is known to be in dh(x), its rounding, and the
    number of proxes. `length` is a length of x; steps are the root of the rounding unit times it. If that is too long
    to come back to x, since it may be far larger than the features of h, shorter steps are tried.
    """
    size = _tree.norm(grad)
    if isinstance(h, Zero):
        return _tree.zeros_like(x), jnp.asarray(True), jnp.zeros_like(size), 0
    eps = float(jnp.finfo(size.dtype).eps)
    Trial = tuple[Scalar, PyTree, Bool[Array, ""], Int[Array, ""]]

    def look(at: Trial) -> Trial:
        step, _, _, tries = at

        def there(_: Any, at: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            z = _tree.axpy(step, at[0], x)
            p = h.prox(z, step)
            return _tree.scale(1 / step, _tree.subtract(z, p)), p

        s, p = jax.lax.fori_loop(0, 1 + _REPEATS, there, (_tree.scale(-1, grad), x))
        off = jax.tree.map(lambda a, b: jnp.all(jnp.abs(a - b) <= _ROUNDING * eps * jnp.abs(b)), p, x)
        inside = jnp.all(jnp.stack(jax.tree.leaves(off)))
        return jnp.where(inside, 1, _SHORTER) * step, s, inside, tries + 1

    def outside(at: Trial) -> Array:
        return ~at[2] & (at[3] < _MOST_LOOKS)

    first = (eps**0.5 * length / jnp.where(size > 0, size, 1), x, jnp.asarray(False), jnp.int32(0))
    step, s, inside, tries = jax.lax.while_loop(outside, look, first)
    # z and p are rounded, each by half a unit of x, and so was the s that z was made of.
    return s, inside, 2 * eps * _tree.norm(x) / step, (1 + _REPEATS) * tries


class Known(NamedTuple):
    """A point of a solver, with its hypergradient and adjoint."""

    x: PyTree
    subgradient: PyTree
    """The one from the last prox."""
    belongs: Bool[Array, ""]
    """Whether it is one at x; it is not before the first accepted step."""
    evaluated: Bool[Array, ""]
    """Whether x was evaluated."""
    length: Scalar
    """A length of x."""
    built: Scalar
    """Curvature times |x|: the size of what is rounded in the subgradient."""


# Everything at x again, much more accurately than a step needs, with the subgradient that makes |d + s| smallest among
# those known to be in dh(x).
def of_evaluation(
    problem: Problem, at: Known, before: Evaluation, found: Evaluation, bounds: Bounds | None
) -> Certificate:
    """The certificate of a point from a hypergradient evaluated there twice, the second time more accurately.
    `relative` is not known here, and the counts are those of this function.
    """
    error = _tree.norm(_tree.subtract(found.grad, before.grad)) + found.error + found.bias
    error = jnp.where(found.outcome <= Outcome.ROUGH, error, jnp.inf)  # else the second evaluation failed
    lower, adjoint = found.lower_residual, found.adjoint_residual
    other, inside, off, proxes = nearest(problem.regularizer, at.x, found.grad, at.length)
    counts = Counts(prox=proxes)
    if bounds is not None:
        fresh = residuals(problem, at.x, found.y, found.v)
        error, counts = bounds.hypergradient_error(fresh.lower, fresh.adjoint, fresh.v), counts + fresh.counts
        lower, adjoint = fresh.lower, ratio(fresh.adjoint, fresh.rhs)
    gap, shorter = (_tree.norm(_tree.axpy(1, s, found.grad)) for s in (at.subgradient, other))
    gap = jnp.where(~at.belongs | (inside & (shorter + off < gap)), shorter + off, gap)
    terms = found.terms + _tree.norm(at.subgradient) + at.built
    error = jnp.where(at.evaluated, error, jnp.inf) + _ROUNDING * float(jnp.finfo(gap.dtype).eps) * terms
    unknown = jnp.full_like(gap, jnp.nan)
    guaranteed = bounds is not None
    return Certificate(gap + error, unknown, error, lower, adjoint, found.y, counts, guaranteed, found.margin)
