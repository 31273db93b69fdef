r"""A hypergradient from gradients alone: the penalty method F2SA, two-sided, with estimates of all of its errors.

How y* enters Phi shows when the lower problem is tilted. With p = f_y(x, y*) let

    w(t) = argmin_w g(x, w) + t <p, w>,     so that     w(0) = y*   and   w'(0) = -v,   g_yy v = p.

So grad Phi = f_x - g_xy v is f_x plus the derivative of g_x(x, w(t)) at t = 0. For a penalty lam and w_j = w(j/lam),

    d = f_x(x, y) + lam/2 (g_x(x, w_1) - g_x(x, w_-1)),     v = lam/2 (w_-1 - w_1).                              (D)

F2SA takes one side, lam (g_x(x, w) - g_x(x, y)) with w = argmin lam g + f. With two sides the error is O(1/lam^2) and
not O(1/lam): lam need not be so large that rounding, which is of order eps lam, eats what it gains. And p, the linear
part of f, has the same derivative at 0 as f: but so tilted the lower problems are as convex as g whatever lam is, an
inner step takes no gradient of f, and there is no error at all where g is quadratic in y.

y, w_1 and w_-1 are found by accelerated descent, each from where the others point to: the last y, y - v/lam, 2y - w_1.
The errors:
- Descent estimates how far off y and w_j are. What that does to d: lam |g_xy| for w_j, with |g_xy| seen by v and by
  the last change of y (hence g_x at the old y), and |d' - d| / |y' - y| of the last move for y.
- One more point, started at its extrapolation w_-1 + 3 (w_1 - y), shows the third derivative in t, and with it the bias
  of (D): lam/6 |g_x(w_2) - 3 g_x(w_1) + 3 g_x(y) - g_x(w_-1)|.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.lower import Descent, accelerate
from proxbi.problem import Counts, Problem


class Point(NamedTuple):
    """What is known at an x, and what the next evaluation starts from; a number that is not known yet is 0."""

    y: PyTree
    v: PyTree
    grad: PyTree
    value: Scalar
    """f - <v, g_y>: its error is of second order in that of y."""
    inexactness: Scalar
    """An estimate of the error of grad, but for its bias."""
    bias: Scalar
    """An estimate of the error that is due to lam."""
    penalty: Scalar
    """lam."""
    gain: Scalar
    """|g_xy|."""
    sensitivity: Scalar
    """|d' - d| / |y' - y|."""
    step_size: Scalar
    flatness: Scalar
    """Of the lower problem, as in `Descent`."""
    residual: Scalar
    """|g_y(x, y)|."""

    @property
    def error(self) -> Scalar:
        """An estimate of |grad - grad Phi(x)|."""
        return self.inexactness + self.bias


def start(x: PyTree, y: PyTree, penalty: Scalar) -> Point:
    """Nothing is known."""
    zero = jnp.zeros_like(penalty)
    unknown = Point(y, _tree.zeros_like(y), _tree.zeros_like(x), *[zero] * 9)
    return unknown._replace(penalty=penalty)


def evaluate(problem: Problem, x: PyTree, last: Point, accuracy: Scalar) -> tuple[Point, Counts]:
    """y, v and d at x, with an error of d of about `accuracy` but for its bias."""
    first = last.step_size == 0
    spread = ratio(accuracy, last.gain * last.penalty, jnp.inf)  # that w_j, and y, which they start from, may have
    enough = jnp.minimum(spread, ratio(accuracy, last.sensitivity, jnp.inf))
    lower = accelerate(
        lambda w: problem.grad_lower(x, w),
        last.y,
        tol=jnp.where(first, 1e-4, 0),
        distance=jnp.where(jnp.isfinite(enough), enough, 0),
        step_size=last.step_size,
        flatness=last.flatness,
    )
    y = lower.y
    value, (upper_x, pull) = problem.value_and_grad_upper(x, y)
    reach = lower.step_size * _tree.norm(pull)  # at most lam |w_1 - y|, for steps of 1/L
    size = jnp.maximum(_tree.norm(y), _tree.norm(last.y))
    fresh = jnp.where(reach > 0, 100 * reach / jnp.where(size > 0, size, 1), 1)  # w_1 - y: a hundredth of y, at least
    lam = jnp.where(last.penalty > 0, last.penalty, fresh)
    spread = jnp.where(jnp.isfinite(spread), spread, 0.01 * reach / lam)

    def tilted(j: int, at: PyTree, distance: Scalar) -> Descent:
        def gradient(w: PyTree) -> PyTree:
            return _tree.axpy(j / lam, pull, problem.grad_lower(x, w))

        return accelerate(gradient, at, distance=distance, step_size=lower.step_size, flatness=lower.flatness)

    up = tilted(1, _tree.axpy(-1 / lam, last.v, y), spread)
    down = tilted(-1, _tree.axpy(2, y, _tree.scale(-1, up.y)), 2 * spread)
    further = tilted(2, _tree.axpy(3, _tree.subtract(up.y, y), down.y), 8 * spread)
    slopes = [problem.grad_lower_x(x, w) for w in (up.y, down.y, further.y, y, last.y)]
    at_up, at_down, at_further, at_y, at_last = slopes
    v = _tree.scale(lam / 2, _tree.subtract(down.y, up.y))
    implicit = _tree.scale(lam / 2, _tree.subtract(at_up, at_down))
    grad = _tree.axpy(1, implicit, upper_x)
    third = _tree.axpy(3, _tree.subtract(at_y, at_up), _tree.subtract(at_further, at_down))

    moved = _tree.norm(_tree.subtract(y, last.y))
    by_v = ratio(_tree.norm(implicit), _tree.norm(v))
    by_y = ratio(_tree.norm(_tree.subtract(at_y, at_last)), moved)
    gain = jnp.maximum(jnp.maximum(by_v, by_y), 0.8 * last.gain)  # each may be small by chance
    flatness = jnp.maximum(jnp.maximum(lower.flatness, up.flatness), down.flatness)
    off = gain * lam / 2 * (up.residual + down.residual) + last.sensitivity * lower.residual
    rounding = float(jnp.finfo(lam.dtype).eps) * lam / 2 * (_tree.norm(at_up) + _tree.norm(at_down))
    point = Point(
        y=y,
        v=v,
        grad=grad,
        value=value - _tree.dot(v, lower.gradient),
        inexactness=flatness * off + rounding,
        bias=lam / 6 * _tree.norm(third),
        penalty=lam,
        gain=gain,
        sensitivity=last.sensitivity,
        step_size=lower.step_size,
        flatness=flatness,
        residual=lower.residual,
    )
    turn = _tree.norm(_tree.subtract(grad, last.grad))
    clear = ~first & (turn > 2 * (point.error + last.error)) & (moved > 0)
    point = point._replace(sensitivity=jnp.where(clear, ratio(turn, moved), last.sensitivity))
    calls = lower.calls + up.calls + down.calls + further.calls
    return point, Counts(grad_lower=calls, grad_upper=1, grad_lower_x=len(slopes))


def ratio(a: Scalar, b: Scalar, otherwise: float = 0.0) -> Scalar:
    """a / b, or `otherwise` where b is 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), otherwise)
