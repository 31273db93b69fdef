"""Newton's method on the lower level: the lower solvers made of it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxbi import _check, _tree
from proxbi._damped import LAST_DIGITS
from proxbi._lower_level import Lower, advance, first_probe, linearised, look
from proxbi.linear import CG, Direct, LinearSolver, LinearStatus
from proxbi.lower import LowerSolver
from proxbi.problem import Counts, Problem

_FACE_STEPS = 3  # of CG, for each entry of y: rounding makes it need more than one


class Newton(LowerSolver):
    r"""Newton's method on $\nabla_y g(x, y) = 0$, its steps shortened where g rises or is not finite: to rounding
    level, from any start, where g is strongly convex. With a lower regularizer, on the active face, which proximal
    gradient steps find; there CG takes the place of `Direct`.

    **Arguments:**

    - `linear`: solves for the steps; `Direct()` takes dim(y) Hessian-vector products for each.
    - `steps`: the most to take.

    Reference: J. Nocedal, S. J. Wright, *Numerical Optimization*, 2006, section 3.3.

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
        at, counts = self.settle(problem, x, y)
        return at.y, counts

    def settle(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[Lower, Counts]:
        """The same, with all that is known of the point."""
        State = tuple[Lower, Array, Counts, Int[Array, ""]]
        linear = _on_faces(self.linear, problem, y)

        def step(state: State) -> State:
            at, _, counts, taken = state
            here = linearised(problem, x, at)
            direction, info = linear.solve(here.product, _tree.scale(-1, at.slope))
            new = advance(problem, x, at, direction, jnp.asarray(True))
            size, eps = _tree.norm(at.y), float(jnp.finfo(at.residual.dtype).eps)
            # Far away |g_y| may rise where g falls; near y*, where steps are short, that is rounding.
            far = (new.length > eps**0.5 * size) | new.unsettled
            better = (new.residual < at.residual) | (far & (new.level < at.level))
            more = better & ((new.length > LAST_DIGITS * eps * size) | new.unsettled)
            counts = counts + new.counts + here.made + Counts(hvp=info.matvecs)
            return _tree.where(better, new, at), more, counts, taken + 1

        at, _, cost = look(problem, x, y, first_probe(problem, y))
        start = (at, jnp.asarray(True), jax.tree.map(jnp.int32, cost), jnp.int32(0))
        at, _, counts, _ = jax.lax.while_loop(lambda s: s[1] & (s[3] < self.steps), step, start)
        return at, counts


def _on_faces(linear: LinearSolver, problem: Problem, y: PyTree) -> LinearSolver:
    """A solver for the Hessian along the active face, which is singular across it: CG takes the place of Cholesky."""
    if problem.lower_regularizer is None or not isinstance(linear, Direct):
        return linear
    return CG(steps=_FACE_STEPS * sum(leaf.size for leaf in jax.tree.leaves(y)), tol=0.0)


class Exact(LowerSolver):
    """Solve grad_y g(x, y) = 0 to near machine precision by Newton's method: a reference for small problems.

    It materialises the Hessian, so a solve costs about dim(y) Hessian-vector products a step; the counts say so. Where
    `tol` (or the rounding level of y's dtype, if that is larger) is not reached in `max_steps` steps the result is NaN:
    a reference is exact or nothing.

    **Arguments:**

    - `tol`: the largest Newton correction of y, relative to 1 + |y|, that counts as solved, up to a factor of 100.
    - `max_steps`: the most Newton steps.

    Reference: J. Nocedal, S. J. Wright, *Numerical Optimization*, 2006, section 3.3.

    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = Exact().solve(scalar_problem(), jnp.array(3.0), jnp.array(0.0))
    >>> print(y)
    3.0
    """

    tol: float = eqx.field(static=True, default=1e-12)
    max_steps: int = eqx.field(static=True, default=200)

    def __check_init__(self) -> None:
        _check.positive("tol", _check.as_float(self.tol))
        _check.positive_int("max_steps", self.max_steps)

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """The y with |grad_y g(x, y)| at rounding level."""
        tol = max(self.tol, *(8 * float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(y)))
        at, counts = Newton(Direct(), self.max_steps).settle(problem, x, y)
        # The Newton correction is the distance to the solution up to second order: it decides, and is applied.
        here = linearised(problem, x, at)
        found, info = _on_faces(Direct(), problem, y).solve(here.product, at.slope)
        correction = here.project(found)
        small = _tree.norm(correction) <= 100 * tol * (1 + _tree.norm(at.y))
        broken = (info.status == int(LinearStatus.NEGATIVE_CURVATURE)) | (info.status == int(LinearStatus.NONFINITE))
        solved = small & ~broken & ~at.unsettled
        answer = _tree.where(solved, _tree.axpy(-1, correction, at.y), jax.tree.map(lambda leaf: leaf * jnp.nan, y))
        return answer, counts + here.made + Counts(hvp=info.matvecs)
