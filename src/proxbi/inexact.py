r"""Lower and adjoint solves that stop when their error no longer matters.

With H = g_yy, both the lower problem (by Newton's method: H e = -g_y) and the adjoint equation (H e = f_y - H v) ask
for a *correction* e of what is known already. The size of a correction and of the error left in it are measured in
the energy norm |e|_H = <e, H e>^1/2, in which both are dimensionless relative to each other, whatever the units of y,
f and g are. CG knows the energy of what it has found exactly: it adds alpha_j <r_j, M r_j> in step j. What is left is
|r|_{H^-1}, which is between <r, M r> / lambda_max(MH) and <r, M r> / lambda_min(MH); the longest CG step is an
estimate of 1 / lambda_min(MH), and M, made of all pairs (p, H p) met so far, makes both bounds close to one another.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _tree, secant
from proxbi._tree import Scalar
from proxbi.linear import LinearStatus, Matvec
from proxbi.problem import Counts, Problem
from proxbi.secant import Secants

_RUNNING = -1


class Correction(NamedTuple):
    """e with H e = b up to `error`. Where the status is NONFINITE nothing else is to be used, but for the pairs."""

    step: PyTree
    residual: PyTree
    """b - H e, by CG's recursion."""
    size: Scalar
    """|e|_H."""
    error: Scalar
    """An estimate of the error of e, in the same norm."""
    status: Int[Array, ""]
    """A `LinearStatus`."""
    matvecs: Int[Array, ""]
    secants: Secants
    """With the pairs of this solve."""


class _Iterate(NamedTuple):
    step: PyTree
    residual: PyTree
    direction: PyTree
    decrease: Scalar  # <r, M r>
    energy: Scalar  # |step|_H^2
    longest: Scalar
    error: Scalar
    status: Int[Array, ""]
    matvecs: Int[Array, ""]
    secants: Secants


def correct(matvec: Matvec, b: PyTree, accuracy: Scalar, known: Scalar, secants: Secants, steps: int) -> Correction:
    """CG for H e = b from zero, until its error is at most `accuracy` times the larger of |e|_H and `known`."""
    scale = _tree.norm(b)
    unit = jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1)
    b = _tree.scale(1 / unit, b)
    known = known / unit
    eps = float(jnp.finfo(scale.dtype).eps)

    def more(at: _Iterate) -> Array:
        return at.status == _RUNNING

    def advance(at: _Iterate) -> _Iterate:
        product = matvec(at.direction)
        curvature = _tree.dot(at.direction, product)
        flat = curvature <= eps * _length(at.direction) * _length(product)
        length = jnp.where(flat, 0, at.decrease / jnp.where(flat, 1, curvature))
        step = _tree.axpy(length, at.direction, at.step)
        residual = _tree.axpy(-length, product, at.residual)
        conditioned = secant.inverse(secants, residual)
        decrease = jnp.maximum(_tree.dot(residual, conditioned), 0)
        energy, longest = at.energy + length * at.decrease, jnp.maximum(at.longest, length)
        error = jnp.sqrt(decrease * longest)
        finite = jnp.isfinite(decrease) & jnp.isfinite(energy)
        # The recursion for r may go on falling when b - H e no longer does: stop at rounding level.
        done = (error <= accuracy * jnp.maximum(jnp.sqrt(energy), known)) | (_length(residual) <= 4 * eps)
        ends = {
            LinearStatus.NONFINITE: ~finite,
            LinearStatus.NEGATIVE_CURVATURE: flat,
            LinearStatus.OK: done,
            LinearStatus.BUDGET: at.matvecs + 1 >= steps,
        }
        status = jnp.select(list(ends.values()), list(ends), _RUNNING).astype(jnp.int32)
        direction = _tree.axpy(decrease / jnp.where(at.decrease > 0, at.decrease, 1), at.direction, conditioned)
        pairs = secant.push(at.secants, at.direction, product, eps)[0]
        return _Iterate(step, residual, direction, decrease, energy, longest, error, status, at.matvecs + 1, pairs)

    first = secant.inverse(secants, b)
    decrease = _tree.dot(b, first)
    zero = jnp.zeros_like(scale)
    status = jnp.select([~jnp.isfinite(scale), scale == 0], [LinearStatus.NONFINITE, LinearStatus.OK], _RUNNING).astype(
        jnp.int32
    )
    start = _Iterate(_tree.zeros_like(b), b, first, decrease, zero, zero, zero, status, jnp.int32(0), secants)
    last = jax.lax.while_loop(more, advance, start)
    return Correction(
        step=_tree.scale(unit, last.step),
        residual=_tree.scale(unit, last.residual),
        size=unit * jnp.sqrt(last.energy),
        error=unit * last.error,
        status=last.status,
        matvecs=last.matvecs,
        secants=last.secants,
    )


class LowerSolution(NamedTuple):
    """y close to y*(x)."""

    y: PyTree
    gradient: PyTree
    """g_y there."""
    size: Scalar
    """The energy of the largest correction made."""
    error: Scalar
    """An estimate of the energy of y - y*(x)."""
    status: Int[Array, ""]
    """A `LinearStatus`: BUDGET if Newton's method did not get there."""
    counts: Counts
    secants: Secants


class _Newton(NamedTuple):
    y: PyTree
    gradient: PyTree
    size: Scalar
    error: Scalar
    status: Int[Array, ""]
    grads: Int[Array, ""]
    matvecs: Int[Array, ""]
    rounds: Int[Array, ""]
    secants: Secants


_MOST_NEWTON_STEPS = 50
_MOST_HALVINGS = 30


# Newton's method with CG. The step length is found from gradients alone, whose noise is far below that of values: along
# a direction p the slope <g_y(y + t p), p> of a convex g grows from a negative value, and t is too long only if the
# slope has turned nearly as steep upwards. The secant through both slopes then meets zero where a quadratic would.
def solve_lower(
    problem: Problem, x: PyTree, y: PyTree, accuracy: Scalar, known: Scalar, secants: Secants, steps: int
) -> LowerSolution:
    """Until the error is at most about `accuracy` times the larger of the corrections made and `known`."""
    gradient = problem.grad_lower(x, y)
    eps = float(jnp.finfo(accuracy.dtype).eps)

    def advance(at: _Newton) -> _Newton:
        newton = correct(problem.hvp(x, at.y), _tree.scale(-1, at.gradient), accuracy, at.size, at.secants, steps)
        slope = _tree.dot(at.gradient, newton.step)

        def too_long(trial: tuple[Scalar, PyTree, PyTree, Array]) -> Array:
            _, _, gradient, tries = trial
            there = _tree.dot(gradient, newton.step)
            return (~(there <= -0.9 * slope)) & (tries < _MOST_HALVINGS)

        def shorten(trial: tuple[Scalar, PyTree, PyTree, Array]) -> tuple[Scalar, PyTree, PyTree, Array]:
            length, _, gradient, tries = trial
            meets_zero = slope / (slope - _tree.dot(gradient, newton.step))
            length = length * jnp.clip(jnp.where(jnp.isfinite(meets_zero), meets_zero, 0.1), 0.1, 0.9)
            moved = _tree.axpy(length, newton.step, at.y)
            return length, moved, problem.grad_lower(x, moved), tries + 1

        moved = _tree.axpy(1, newton.step, at.y)
        first = (jnp.ones_like(slope), moved, problem.grad_lower(x, moved), jnp.int32(0))
        _, moved, gradient, tries = jax.lax.while_loop(too_long, shorten, first)
        size = jnp.maximum(at.size, newton.size)
        rest = _tree.dot(gradient, secant.inverse(newton.secants, gradient))
        error = jnp.sqrt(jnp.maximum(rest, 0))
        rounded = _tree.norm(newton.step) <= 10 * eps * _tree.norm(at.y)
        solved = ((error <= 1.5 * accuracy * size) & (tries == 0)) | rounded
        finite = jnp.isfinite(rest) & jnp.isfinite(slope)
        broken = newton.status > int(LinearStatus.BUDGET)
        ends = {
            LinearStatus.NONFINITE: ~finite,
            LinearStatus.OK: solved,
            LinearStatus.BUDGET: at.rounds + 1 >= _MOST_NEWTON_STEPS,
        }
        status = jnp.where(broken, newton.status, jnp.select(list(ends.values()), list(ends), _RUNNING))
        status = status.astype(jnp.int32)
        grads, matvecs = at.grads + 1 + tries, at.matvecs + newton.matvecs
        return _Newton(moved, gradient, size, error, status, grads, matvecs, at.rounds + 1, newton.secants)

    zero, none = jnp.zeros_like(accuracy), jnp.int32(0)
    status = jnp.where(_tree.norm(gradient) == 0, int(LinearStatus.OK), _RUNNING).astype(jnp.int32)
    start = _Newton(y, gradient, known, zero, status, jnp.int32(1), none, none, secants)
    last = jax.lax.while_loop(lambda at: at.status == _RUNNING, advance, start)
    counts = Counts(grad_lower=last.grads, hvp=last.matvecs)
    return LowerSolution(last.y, last.gradient, last.size, last.error, last.status, counts, last.secants)


class Adjoint(NamedTuple):
    """v close to the solution of H v = f_y, and the hypergradient with it."""

    v: PyTree
    grad: PyTree
    """f_x - g_xy v."""
    value: Scalar
    """f."""
    correction: Correction
    rhs: Scalar
    """|f_y|."""
    counts: Counts


def solve_adjoint(
    problem: Problem, x: PyTree, y: PyTree, v: PyTree, accuracy: Scalar, known: Scalar, secants: Secants, steps: int
) -> Adjoint:
    """From v, until the error is at most `accuracy` times the larger of the correction and `known`."""
    value, (upper_x, upper_y) = problem.value_and_grad_upper(x, y)
    hvp = problem.hvp(x, y)
    e = correct(hvp, _tree.subtract(upper_y, hvp(v)), accuracy, known, secants, steps)
    v = _tree.axpy(1, e.step, v)
    grad = _tree.subtract(upper_x, problem.cross(x, y)(v))
    counts = Counts(grad_upper=1, hvp=e.matvecs + 1, cross=1)
    return Adjoint(v, grad, value, e, _tree.norm(upper_y), counts)


def _length(tree: PyTree) -> Scalar:
    """The norm of a vector that is known to be of moderate size: cheaper than `_tree.norm`, which guards overflow."""
    return jnp.sqrt(_tree.dot(tree, tree))
