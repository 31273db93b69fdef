"""A step of Newton's method on g_y(x, y) = 0, short enough that g falls."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.problem import Problem


# A step of Newton's method. Its length comes from gradients, whose noise is far below that of values: along a direction
# p the slope <g_y(y + t p), p> of a convex g grows from a negative value, and t is too long only if the slope has
# become nearly as steep upwards. The secant through both slopes then meets zero where a quadratic would. And g must be
# finite and must not have risen by more than rounding. How large that is cannot be known if g is a sum of large terms
# that cancel, so a rise within half of the digits is ignored if both slopes show that g falls.
class Damped(NamedTuple):
    """The result of a step of Newton's method."""

    length: Scalar
    """The part of the step that was accepted."""
    slope: Scalar
    """<g_y, step> there."""
    y: PyTree
    level: Scalar
    """g."""
    gradient: PyTree
    """g_y."""
    tries: Int[Array, ""]
    """Calls of g and g_y; more than `MOST_TRIES` if no length was short enough."""


MOST_TRIES = 30  # lengths of one Newton step: down to 0.1^30 at worst, 0.9^30 at best
_SHORTEST, _LONGEST = 0.1, 0.9  # the factors by which a step that is too long is shortened, at most and at least
_TURNED = 0.9  # if the slope points upwards by more than this part of its first size, the step is too long
_SLIDES = 0.5  # if the slope has become so much flatter, upwards or downwards, the function fell
_ROUNDING = 10  # units of rounding by which a value may be off
LAST_DIGITS = 10  # a step of so many units of rounding ends Newton's method


def damped(
    problem: Problem, x: PyTree, y: PyTree, level: Scalar, gradient: PyTree, step: PyTree, wanted: Any = True
) -> Damped:
    """y + t `step` with t <= 1 short enough that g falls, from g and g_y at y; y itself unless `wanted`."""
    slope = _tree.dot(gradient, step)
    eps = float(jnp.finfo(slope.dtype).eps)

    def too_long(at: Damped) -> Array:
        slides = jnp.abs(at.slope) <= -_SLIDES * slope
        rise = jnp.abs(level) * jnp.where(slides, eps**0.5, _ROUNDING * eps)
        good = (at.slope <= -_TURNED * slope) & (at.level <= level + rise)
        return jnp.asarray(wanted) & ((at.tries == 0) | (~good & (at.tries <= MOST_TRIES)))

    def look(at: Damped) -> Damped:
        meets_zero = slope / (slope - at.slope)
        # Where g is not finite, its slopes say nothing, though they may be finite: those of a logarithm are.
        known = jnp.isfinite(at.level) & jnp.isfinite(meets_zero) & (meets_zero > 0)
        shorter = jnp.clip(jnp.where(known, meets_zero, _SHORTEST), _SHORTEST, _LONGEST)
        length = at.length * jnp.where(at.tries == 0, 1, shorter)
        moved = _tree.axpy(length, step, y)
        value, there = problem.value_and_grad_lower(x, moved)
        return Damped(length, _tree.dot(there, step), moved, value.astype(slope.dtype), there, at.tries + 1)

    first = Damped(jnp.ones_like(slope), jnp.zeros_like(slope), y, level.astype(slope.dtype), gradient, jnp.int32(0))
    return jax.lax.while_loop(too_long, look, first)
