"""Newton's method on g_y(x, y) = 0: its damped step, which `Implicit` shares, and the lower solvers made of it."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.linear import Direct, LinearSolver, LinearStatus
from proxbi.lower import LowerSolver
from proxbi.problem import Counts, Problem


# A step of Newton's method. Gradients, whose noise is far below that of values, tell its length: along a direction p
# the slope <g_y(y + t p), p> of a convex g grows from a negative value, and t is too long only if the slope has turned
# nearly as steep upwards. The secant through both slopes then meets zero where a quadratic would. And g must be finite
# and must not have risen by more than rounding; how much that is nobody knows where g is a sum of large terms that
# cancel, so a rise within half of the digits counts for nothing where both slopes say that g falls.
class Damped(NamedTuple):
    """Where a step of Newton's method leads."""

    length: Scalar
    """The part of the step that was taken."""
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
_SHORTEST, _LONGEST = 0.1, 0.9  # by which a step that is too long is cut, at most and at least
_TURNED = 0.9  # a slope that has turned more than this part of its size upwards is too long a step
_SLIDES = 0.5  # a slope that has become so much flatter, upwards or downwards, is that of a function that fell
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


class Newton(LowerSolver):
    r"""Newton's method on $\nabla_y g(x, y) = 0$, its steps shortened where g rises or is not finite: to rounding
    level, from any start, where g is strongly convex.

    **Arguments:**

    - `linear`: solves for the steps; `Direct()` takes dim(y) Hessian-vector products for each.
    - `steps`: the most to take.

    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = Newton().solve(scalar_problem(), jnp.array(3.0), jnp.array(0.0))
    >>> print(y, counts.grad_lower)
    3.0 3
    """

    linear: LinearSolver = eqx.field(default_factory=Direct)
    steps: int = eqx.field(static=True, default=60)

    def __check_init__(self) -> None:
        _check.positive_int("steps", self.steps)

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """y where no step makes |g_y(x, y)| smaller."""
        State = tuple[Damped, Array, Counts, Int[Array, ""]]

        def step(state: State) -> State:
            at, _, counts, taken = state
            direction, info = self.linear.solve(problem.hvp(x, at.y), _tree.scale(-1, at.gradient))
            new = damped(problem, x, at.y, at.level, at.gradient, direction)
            length, size, before, after = (_tree.norm(t) for t in (direction, at.y, at.gradient, new.gradient))
            eps = float(jnp.finfo(length.dtype).eps)
            # Far away |g_y| may rise where g falls; near y*, where steps are short, that is rounding.
            better = (after < before) | ((length > eps**0.5 * size) & (new.level < at.level))
            counts = counts + Counts(grad_lower=new.tries, hvp=info.matvecs)
            return _tree.where(better, new, at), better & (length > LAST_DIGITS * eps * size), counts, taken + 1

        level, gradient = problem.value_and_grad_lower(x, y)
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y)))
        at = Damped(zero, zero, y, level.astype(zero.dtype), gradient, jnp.int32(0))
        counts = jax.tree.map(jnp.int32, Counts(grad_lower=1))
        start = (at, jnp.asarray(True), counts, jnp.int32(0))
        at, _, counts, _ = jax.lax.while_loop(lambda s: s[1] & (s[3] < self.steps), step, start)
        return at.y, counts


class Exact(LowerSolver):
    """Solve grad_y g(x, y) = 0 to near machine precision by Newton's method: a reference for small problems.

    It materialises the Hessian, so a solve costs about dim(y) Hessian-vector products a step; the counts say so. Where
    `tol` (or the rounding level of y's dtype, if that is larger) is not reached in `max_steps` steps the result is NaN:
    a reference is exact or nothing.
    """

    tol: float = eqx.field(static=True, default=1e-12)
    max_steps: int = eqx.field(static=True, default=200)

    def __check_init__(self) -> None:
        _check.positive("tol", _check.as_float(self.tol))
        _check.positive_int("max_steps", self.max_steps)

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """The y with |grad_y g(x, y)| at rounding level."""
        tol = max(self.tol, *(8 * float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(y)))
        y, counts = Newton(Direct(), self.max_steps).solve(problem, x, y)
        # The Newton correction is the distance to the solution up to second order: it decides, and is applied.
        correction, info = Direct().solve(problem.hvp(x, y), problem.grad_lower(x, y))
        small = _tree.norm(correction) <= 100 * tol * (1 + _tree.norm(y))
        solved = small & (info.status == int(LinearStatus.OK))
        answer = _tree.where(solved, _tree.axpy(-1, correction, y), jax.tree.map(lambda leaf: leaf * jnp.nan, y))
        return answer, counts + Counts(grad_lower=1, hvp=info.matvecs)
