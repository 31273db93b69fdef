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
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _tree, secant
from proxbi._tree import Scalar
from proxbi.linear import LinearStatus, Matvec
from proxbi.problem import Counts, Problem
from proxbi.secant import Inverse, Secants

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
    pairs: Secants | None
    """With those of this solve."""


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
    pairs: Secants | None


def correct(
    matvec: Matvec,
    b: PyTree,
    accuracy: Scalar,
    known: Scalar,
    precondition: Matvec,
    pairs: Secants | None,
    steps: int,
) -> Correction:
    """CG for H e = b from zero, until its error is at most `accuracy` times the larger of |e|_H and `known`; what it
    learns of H is added to the pairs.
    """
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
        conditioned = precondition(residual)
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
        pairs = None if at.pairs is None else secant.push(at.pairs, at.direction, product, eps)[0]
        return _Iterate(step, residual, direction, decrease, energy, longest, error, status, at.matvecs + 1, pairs)

    first = precondition(b)
    decrease = jnp.maximum(_tree.dot(b, first), 0)
    zero, error = jnp.zeros_like(scale), jnp.sqrt(decrease)
    ends = {LinearStatus.NONFINITE: ~jnp.isfinite(scale), LinearStatus.OK: (scale == 0) | (error <= accuracy * known)}
    status = jnp.select(list(ends.values()), list(ends), _RUNNING).astype(jnp.int32)
    start = _Iterate(_tree.zeros_like(b), b, first, decrease, zero, zero, error, status, jnp.int32(0), pairs)
    last = jax.lax.while_loop(more, advance, start)
    return Correction(
        step=_tree.scale(unit, last.step),
        residual=_tree.scale(unit, last.residual),
        size=unit * jnp.sqrt(last.energy),
        error=unit * last.error,
        status=last.status,
        matvecs=last.matvecs,
        pairs=last.pairs,
    )


class Solution(NamedTuple):
    """y close to y*(x), v close to the solution of H v = f_y, and the hypergradient they make."""

    y: PyTree
    v: PyTree
    grad: PyTree
    """f_x - g_xy v."""
    value: Scalar
    """f."""
    gradient: PyTree
    """g_y."""
    sizes: tuple[Scalar, Scalar]
    """The energies of the largest corrections made to y and to v."""
    errors: tuple[Scalar, Scalar]
    """Estimates of the energies of what is still wrong with them."""
    residual: Scalar
    """|f_y - H v|, by CG's recursion."""
    rhs: Scalar
    """|f_y|."""
    lower_status: Int[Array, ""]
    """A `LinearStatus`: BUDGET if Newton's method did not get there."""
    status: Int[Array, ""]
    """That of the adjoint equation."""
    iterations: Int[Array, ""]
    """Of CG on it."""
    counts: Counts
    conditioner: Inverse | None


class _Upper(NamedTuple):
    value: Scalar
    x: PyTree
    y: PyTree


class _At(NamedTuple):
    y: PyTree
    v: PyTree
    gradient: PyTree
    upper: _Upper
    sizes: tuple[Scalar, Scalar]
    errors: tuple[Scalar, Scalar]
    residual: Scalar
    lower_status: Int[Array, ""]
    status: Int[Array, ""]
    grads: Int[Array, ""]
    matvecs: Int[Array, ""]
    iterations: Int[Array, ""]
    rounds: Int[Array, ""]
    shortened: Bool[Array, ""]  # whether the last step of y was
    tiny: Bool[Array, ""]  # and whether it changed no more than half of its digits
    conditioner: Inverse | None


_MOST_NEWTON_STEPS = 50
_MOST_HALVINGS = 30


# One loop of corrections: of y by Newton's method until it is solved for, then of v, once. (One loop, because CG with
# all that it needs is the larger part of the program, and compiled but once so.)
def solve(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    v: PyTree,
    accuracy: Scalar,
    known: tuple[Scalar, Scalar],
    conditioner: Inverse | None,
    steps: int,
) -> Solution:
    """From y and v, until the error of each is at most about `accuracy` times the larger of the corrections made to it
    and what is `known` of earlier ones. The `conditioner` is what earlier solves have learned; None if the problem has
    its own.
    """
    gradient = problem.grad_lower(x, y)
    eps = float(jnp.finfo(accuracy.dtype).eps)

    def advance(at: _At) -> _At:
        hvp, own = problem.hvp(x, at.y), problem.preconditioner(x, at.y)
        precondition = _applied(own, at.conditioner)
        error = jnp.sqrt(jnp.maximum(_tree.dot(at.gradient, precondition(at.gradient)), 0))
        small = (error <= 1.5 * accuracy * at.sizes[0]) & ~at.shortened
        small = small | (at.tiny & (error > 0.5 * at.errors[0]))  # steps no longer help: all that is left is rounding
        at = at._replace(
            errors=(error, at.errors[1]),
            lower_status=jnp.where((at.lower_status == _RUNNING) & small, int(LinearStatus.OK), at.lower_status),
        )
        solved = at.lower_status != _RUNNING

        def of_v() -> tuple[PyTree, _Upper]:
            value, (upper_x, upper_y) = problem.value_and_grad_upper(x, at.y)
            return _tree.subtract(upper_y, hvp(at.v)), _Upper(value.astype(accuracy.dtype), upper_x, upper_y)

        rhs, upper = jax.lax.cond(solved, of_v, lambda: (_tree.scale(-1, at.gradient), at.upper))
        known = jnp.where(solved, at.sizes[1], at.sizes[0])
        pairs = None if at.conditioner is None else at.conditioner.pairs
        e = correct(hvp, rhs, accuracy, known, precondition, pairs, steps)
        at = at._replace(upper=upper, conditioner=None if e.pairs is None else secant.inverse(e.pairs))
        return jax.lax.cond(solved, lambda: _corrected(at, e), lambda: _newton(problem, x, at, e, eps))

    zero, none, running = jnp.zeros_like(accuracy), jnp.int32(0), jnp.int32(_RUNNING)
    start = _At(
        y=y,
        v=v,
        gradient=gradient,
        upper=_Upper(zero, _tree.zeros_like(x), _tree.zeros_like(y)),
        sizes=known,
        errors=(zero, zero),
        residual=zero,
        lower_status=jnp.where(_tree.norm(gradient) == 0, int(LinearStatus.OK), running),
        status=running,
        grads=jnp.int32(1),
        matvecs=none,
        iterations=none,
        rounds=none,
        shortened=jnp.asarray(False),
        tiny=jnp.asarray(False),
        conditioner=conditioner,
    )
    last = jax.lax.while_loop(lambda at: at.status == _RUNNING, advance, start)
    grad = _tree.subtract(last.upper.x, problem.cross(x, last.y)(last.v))
    return Solution(
        y=last.y,
        v=last.v,
        grad=grad,
        value=last.upper.value,
        gradient=last.gradient,
        sizes=last.sizes,
        errors=last.errors,
        residual=last.residual,
        rhs=_tree.norm(last.upper.y),
        lower_status=last.lower_status,
        status=last.status,
        iterations=last.iterations,
        counts=Counts(grad_lower=last.grads, grad_upper=1, hvp=last.matvecs, cross=1),
        conditioner=last.conditioner,
    )


def _applied(own: Matvec | None, learned: Inverse | None) -> Matvec:
    """What the solver has learned, or what the problem brings."""
    if learned is not None:
        return learned.__matmul__
    assert own is not None, "`blank` sees to it that there is one or the other."
    return own


def _corrected(at: _At, e: Correction) -> _At:
    """v with its correction."""
    return at._replace(
        v=_tree.axpy(1, e.step, at.v),
        sizes=(at.sizes[0], jnp.maximum(at.sizes[1], e.size)),
        errors=(at.errors[0], e.error),
        residual=_tree.norm(e.residual),
        status=e.status,
        iterations=e.matvecs,
        matvecs=at.matvecs + e.matvecs + 1,
    )


# A step of Newton's method. Its length is found from gradients alone, whose noise is far below that of values: along a
# direction p the slope <g_y(y + t p), p> of a convex g grows from a negative value, and t is too long only if the slope
# has turned nearly as steep upwards. The secant through both slopes then meets zero where a quadratic would.
def _newton(problem: Problem, x: PyTree, at: _At, e: Correction, eps: float) -> _At:
    slope = _tree.dot(at.gradient, e.step)

    def too_long(trial: tuple[Scalar, Scalar, PyTree, PyTree, Array]) -> Array:
        _, there, _, _, tries = trial
        return (tries == 0) | ((~(there <= -0.9 * slope)) & (tries <= _MOST_HALVINGS))

    def look(trial: tuple[Scalar, Scalar, PyTree, PyTree, Array]) -> tuple[Scalar, Scalar, PyTree, PyTree, Array]:
        length, there, _, _, tries = trial
        meets_zero = slope / (slope - there)
        shorter = jnp.clip(jnp.where(jnp.isfinite(meets_zero), meets_zero, 0.1), 0.1, 0.9)
        length = length * jnp.where(tries == 0, 1, shorter)
        moved = _tree.axpy(length, e.step, at.y)
        gradient = problem.grad_lower(x, moved)
        return length, _tree.dot(gradient, e.step), moved, gradient, tries + 1

    first = (jnp.ones_like(slope), jnp.zeros_like(slope), at.y, at.gradient, jnp.int32(0))
    _, _, moved, gradient, tries = jax.lax.while_loop(too_long, look, first)
    finite = _tree.all_finite(gradient) & jnp.isfinite(slope)
    step, size = _tree.norm(e.step), _tree.norm(at.y)
    ends = {
        LinearStatus.NONFINITE: ~finite,
        LinearStatus.OK: step <= 10 * eps * size,
        LinearStatus.BUDGET: at.rounds + 1 >= _MOST_NEWTON_STEPS,
    }
    status = jnp.select(list(ends.values()), list(ends), _RUNNING)
    broken = e.status > int(LinearStatus.BUDGET)
    return at._replace(
        y=moved,
        gradient=gradient,
        sizes=(jnp.maximum(at.sizes[0], e.size), at.sizes[1]),
        lower_status=jnp.where(broken, e.status, status).astype(jnp.int32),
        grads=at.grads + tries,
        matvecs=at.matvecs + e.matvecs,
        rounds=at.rounds + 1,
        shortened=tries > 1,
        tiny=step <= eps**0.5 * size,
    )


def blank(problem: Problem, y: PyTree, pairs: int) -> Inverse | None:
    """A conditioner that has learned nothing yet, with room for `pairs` pairs; None if the problem has its own."""
    if type(problem).preconditioner is not Problem.preconditioner:
        return None
    return secant.inverse(secant.empty(y, pairs))


def _length(tree: PyTree) -> Scalar:
    """The norm of a vector that is known to be of moderate size: cheaper than `_tree.norm`, which guards overflow."""
    return jnp.sqrt(_tree.dot(tree, tree))
