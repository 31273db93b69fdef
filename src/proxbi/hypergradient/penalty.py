r"""A hypergradient from gradients alone: the penalty method F2SA, two-sided, with estimates of all its errors.

How y* enters Phi shows when the lower problem is tilted. With p = f_y(x, y*) let

    w(t) = argmin_w g(x, w) + t <p, w>,     so that     w(0) = y*   and   w'(0) = -v,   g_yy v = p.

So grad Phi = f_x - g_xy v is f_x plus the derivative of g_x(x, w(t)) at t = 0. With a penalty lam and w_j = w(j/lam),

    d = f_x(x, y) + lam/2 (g_x(x, w_1) - g_x(x, w_-1)),     v = lam/2 (w_-1 - w_1).                              (D)

F2SA takes one side, lam (g_x(x, w) - g_x(x, y)) with w = argmin lam g + f. With two sides the error is O(1/lam^2) and
not O(1/lam): lam need not be so large that rounding, which is of order eps lam, cancels the gain. And tilting by p, the
linear part of f, gives the same derivative at 0 as tilting by f, but the lower problems are as convex as g for every
lam, an inner step needs no gradient of f, and there is no error at all where g is quadratic in y.

y, w_1, w_-1 and w_2 are found by accelerated descent, each from a start given by the others: the last y, y - v/lam,
2y - w_1 and w_-1 + 3 (w_1 - y). The errors:

- Descent estimates the errors of y and w_j. Their effect on d: lam |g_xy| for w_j, with |g_xy| estimated from v and
  from the last change of y (hence g_x at the old y), and |d' - d| / |y' - y| of the last move for y.
- w_2 shows the third derivative in t, and with it the bias of (D),
  lam/6 |g_x(w_2) - 3 g_x(w_1) + 3 g_x(y) - g_x(w_-1)|.

Inner solves aim at a tenth of the allowed error, and so does lam, whose bias is of order 1 / lam^2. If rounding or the
inner solves cause a larger error than that, lam decreases until the two are equal.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.hypergradient._controlled import ControlledHypergradient, Evaluation, Outcome, ratio, unknown
from proxbi.lower import Descent, accelerate, require_smooth
from proxbi.problem import Counts, Problem

_AIM = 0.1  # the part of the allowed error that inner solves and lam aim at
_MOST_ROUNDS = 3
_FIRST_TOL = 1e-4  # of the first lower solve, relative to the size of y
_FIRST_TILT = 100  # w_1 - y is at least a hundredth of y at first
_FIRST_SPREAD = 0.01  # the error of w_1, relative to w_1 - y, before its effect on d is known
_FARTHEST = 10  # a tenth of |y| is far enough away from y for w_1
_FALL, _RISE = 0.5, 4  # lam changes by no more than these factors at a time
_FADES = 0.8  # of |g_xy|: a direction may show little of it by chance
_TILTS = (1, -1, 2)
_STARTS = ((1, -1, 0, 0), (2, 0, -1, 0), (-3, 0, 3, 1))  # of w_j, in terms of y, v/lam, w_1, w_-1
_THIRD, _SIXTH = 3, 1 / 6  # of a third difference, and of a Taylor series
_SPREADS = (1, 2, 8)  # how much less accurate each may be, by its effect on d and on the bias


class Tilted(NamedTuple):
    """The carry of `Penalty`; a number that is not known yet is 0."""

    lam: Scalar
    gain: Scalar
    """|g_xy|."""
    sensitivity: Scalar
    """|d' - d| / |y' - y|."""
    step_size: Scalar
    flatness: Scalar
    """Of the lower problem, as in `Descent`."""
    bias: Scalar
    """Of the last d."""


class _Points(NamedTuple):
    """w_1, w_-1 and w_2, stacked."""

    slopes: PyTree  # g_x
    residuals: Array
    flatness: Scalar
    calls: Int[Array, ""]
    v: PyTree


class Penalty(ControlledHypergradient):
    r"""$d = f_x(x, y) + \tfrac\lambda2\,\big(g_x(x, w_1) - g_x(x, w_{-1})\big)$ with
    $w_{\pm1} = \arg\min_w\; g(x, w) \pm \langle f_y(x, y), w\rangle / \lambda$: no second derivatives.

    For lower levels whose Hessian-vector products are not available or too expensive; if they are available,
    `Implicit` needs fewer calls.

    **Arguments:**

    - `penalty`: a fixed $\lambda$; None chooses it from the required accuracy.

    References: J. Kwon, D. Kwon, S. Wright, R. Nowak, "A fully first-order method for stochastic bilevel optimization",
    2023 (F2SA); L. Chen, Y. Ma, J. Zhang, "Near-optimal nonconvex-strongly-convex bilevel optimization with fully
    first-order oracles", 2025 (F2BA).

    Example: `PenaltyProxBiO`.
    """

    penalty: _check.Number | None = eqx.field(
        converter=lambda lam: None if lam is None else _check.as_float(lam), default=None
    )

    def __check_init__(self) -> None:
        if self.penalty is not None:
            _check.positive("penalty", self.penalty)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> Evaluation:
        require_smooth(problem, "Penalty", "Implicit()")  # tilted by f, a face could change
        known = unknown(x, y, None)
        lam = known.value if self.penalty is None else self.penalty.astype(known.value.dtype)
        return known._replace(carry=Tilted(lam, *[jnp.zeros_like(lam)] * (len(Tilted._fields) - 1)))

    def __call__(
        self, problem: Problem, x: PyTree, last: Evaluation, subgradient: PyTree, accuracy: Scalar
    ) -> Evaluation:
        accuracy = jnp.asarray(accuracy, last.value.dtype)

        def allowed(at: Evaluation) -> Scalar:
            return accuracy * _tree.norm(_tree.axpy(1, subgradient, at.grad))

        def refine(rounds: tuple[Evaluation, Int[Array, ""]]) -> tuple[Evaluation, Int[Array, ""]]:
            at, number = rounds
            new = self._round(problem, x, at, _AIM * allowed(at))
            lam = self._lam(new, _AIM * allowed(new))
            counts = jax.tree.map(jnp.int32, at.counts + new.counts)
            return new._replace(counts=counts, carry=new.carry._replace(lam=lam)), number + 1

        def too_rough(rounds: tuple[Evaluation, Int[Array, ""]]) -> Array:
            at, number = rounds
            rough = (at.error > allowed(at)) & (at.outcome == Outcome.OK) & (number < _MOST_ROUNDS)
            return (number == 0) | rough

        start = last._replace(counts=unknown(x, last.y, None).counts, outcome=jnp.int32(Outcome.OK))
        found, _ = jax.lax.while_loop(too_rough, refine, (start, jnp.int32(0)))
        rough = (found.outcome == Outcome.OK) & (found.error > allowed(found))
        return found._replace(outcome=jnp.where(rough, int(Outcome.ROUGH), found.outcome).astype(jnp.int32))

    def _round(self, problem: Problem, x: PyTree, last: Evaluation, accuracy: Scalar) -> Evaluation:
        """y, v and d at x, with an error of d of about `accuracy` but for its bias."""
        known = last.carry
        lower, spread = _lower(problem, x, last, accuracy)
        value, (upper_x, pull) = problem.value_and_grad_upper(x, lower.y)
        reach = lower.step_size * _tree.norm(pull)  # at most lam |w_1 - y|, for steps of 1/L
        size = jnp.maximum(_tree.norm(lower.y), _tree.norm(last.y))
        fresh = jnp.where(reach > 0, _FIRST_TILT * reach / jnp.where(size > 0, size, 1), 1)
        lam = jnp.where(known.lam > 0, known.lam, fresh)
        spread = jnp.where(jnp.isfinite(spread), spread, _FIRST_SPREAD * reach / lam)
        points = _tilted(problem, x, lower, last.v, pull, lam, spread)

        at_y, at_last = (problem.grad_lower_x(x, y) for y in (lower.y, last.y))
        up, down, further = (jax.tree.map(lambda leaf, k=k: leaf[k], points.slopes) for k in range(len(_TILTS)))
        implicit = _tree.scale(lam / 2, _tree.subtract(up, down))
        grad = _tree.axpy(1, implicit, upper_x)
        third = _tree.axpy(_THIRD, _tree.subtract(at_y, up), _tree.subtract(further, down))
        bias = lam * _SIXTH * _tree.norm(third)

        moved = _tree.norm(_tree.subtract(lower.y, last.y))
        by_v = ratio(_tree.norm(implicit), _tree.norm(points.v))
        by_y = ratio(_tree.norm(_tree.subtract(at_y, at_last)), moved)
        gain = jnp.maximum(jnp.maximum(by_v, by_y), _FADES * known.gain)  # each may be small by chance
        off = gain * lam / 2 * (points.residuals[0] + points.residuals[1]) + known.sensitivity * lower.residual
        rounding = float(jnp.finfo(lam.dtype).eps) * lam / 2 * (_tree.norm(up) + _tree.norm(down))
        inexact = points.flatness * off + rounding
        error = inexact if self.penalty is not None else inexact + bias
        turn = _tree.norm(_tree.subtract(grad, last.grad))
        clear = (known.step_size > 0) & (turn > 2 * (error + last.error)) & (moved > 0)
        sensitivity = jnp.where(clear, ratio(turn, moved), known.sensitivity)
        # g itself too: its slopes may be finite outside its domain.
        finite = _tree.all_finite((value, grad, lower.residual, problem.value_lower(x, lower.y)))
        calls = lower.calls + points.calls
        return last._replace(
            y=lower.y,
            v=points.v,
            grad=grad,
            value=value.astype(lam.dtype) - _tree.dot(points.v, lower.gradient),
            error=error,
            value_error=lower.residual * _tree.norm(points.v) * ratio(inexact + bias, _tree.norm(grad)),
            bias=bias if self.penalty is not None else jnp.zeros_like(bias),
            terms=_tree.norm(upper_x) + _tree.norm(implicit),
            lower_residual=lower.residual,
            adjoint_residual=ratio(lam * points.residuals[0], _tree.norm(pull)),
            outcome=jnp.where(finite, int(Outcome.OK), int(Outcome.NONFINITE)).astype(jnp.int32),
            counts=Counts(grad_lower=calls, grad_upper=1, grad_lower_x=len(_TILTS) + 2, value_lower=1),
            carry=Tilted(lam, gain, sensitivity, lower.step_size, points.flatness, bias),
        )

    def _lam(self, new: Evaluation, aim: Scalar) -> Scalar:
        """The lam whose bias, of order 1 / lam^2, meets the aim, or what the other errors allow."""
        lam = new.carry.lam
        if self.penalty is not None:
            return lam
        wanted = lam * jnp.sqrt(ratio(new.carry.bias, jnp.maximum(aim, new.error - new.carry.bias)))
        apart = _FARTHEST * ratio(_tree.norm(new.v), _tree.norm(new.y))
        return jnp.clip(wanted, jnp.maximum(_FALL * lam, jnp.minimum(lam, apart)), _RISE * lam)


def _lower(problem: Problem, x: PyTree, last: Evaluation, accuracy: Scalar) -> tuple[Descent, Scalar]:
    """y, and the error that w_j may have."""
    known = last.carry
    spread = ratio(accuracy, known.gain * known.lam, jnp.inf)
    enough = jnp.minimum(spread, ratio(accuracy, known.sensitivity, jnp.inf))
    lower = accelerate(
        lambda w: problem.grad_lower(x, w),
        last.y,
        tol=jnp.where(known.step_size == 0, _FIRST_TOL, 0),
        distance=jnp.where(jnp.isfinite(enough), enough, 0),
        step_size=known.step_size,
        flatness=known.flatness,
    )
    return lower, spread


def _tilted(
    problem: Problem, x: PyTree, lower: Descent, v: PyTree, pull: PyTree, lam: Scalar, spread: Scalar
) -> _Points:
    """The three tilted minimisers, one after the other in one compiled loop."""
    y, tangent = lower.y, _tree.scale(1 / lam, v)

    def solve(found: tuple[PyTree, PyTree], row: tuple[Array, ...]) -> tuple[Any, Any]:
        tilt, start, width, number = row
        up, down = found
        at = _tree.zeros_like(y)
        for k, part in enumerate((y, tangent, up, down)):
            at = _tree.axpy(start[k], part, at)

        def gradient(w: PyTree) -> PyTree:
            return _tree.axpy(tilt / lam, pull, problem.grad_lower(x, w))

        end = accelerate(gradient, at, distance=width * spread, step_size=lower.step_size, flatness=lower.flatness)
        up, down = _tree.where(number == 0, end.y, up), _tree.where(number == 1, end.y, down)
        return (up, down), (problem.grad_lower_x(x, end.y), end.residual, end.flatness, end.calls)

    rows = tuple(jnp.asarray(column, lam.dtype) for column in (_TILTS, _STARTS, _SPREADS, range(len(_TILTS))))
    (up, down), (slopes, residuals, flatness, calls) = jax.lax.scan(solve, (y, y), rows)
    adjoint = _tree.scale(lam / 2, _tree.subtract(down, up))
    return _Points(
        slopes, residuals, jnp.maximum(lower.flatness, jnp.max(flatness[:2])), jnp.sum(calls, dtype=jnp.int32), adjoint
    )
