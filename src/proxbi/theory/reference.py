"""Reference values of y*, Phi and grad Phi at a point, exact or nearly so."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.linear import LinearSolver
from proxbi.lower import FixedLength, LowerSolver
from proxbi.problem import Counts, Problem


class Exactly(NamedTuple):
    """Reference values at x."""

    solution: PyTree
    """y*(x)."""
    value: Scalar
    """Phi(x)."""
    gradient: PyTree
    """grad Phi(x)."""


Reference = Callable[[PyTree], Exactly]
"""A function of x that returns the reference values; a pytree, so that it can be passed to compiled functions."""


def closed_forms(
    solution: Callable[[PyTree], PyTree], value: Callable[[PyTree], Scalar], gradient: Callable[[PyTree], PyTree]
) -> Reference:
    """A reference from the three closed forms of an analytic problem. If they are pytrees (`jax.tree_util.Partial`)
    that contain the data, other data of the same shape need no compilation.

    **Arguments:**

    - `solution`: x -> y*(x).
    - `value`: x -> Phi(x).
    - `gradient`: x -> grad Phi(x).

    Example: `audit`.
    """
    return Partial(_closed_forms, solution, value, gradient)


def _closed_forms(solution: Any, value: Any, gradient: Any, x: PyTree) -> Exactly:
    return Exactly(solution(x), value(x), gradient(x))


def computed(problem: Problem, lower: LowerSolver, y: PyTree, linear: LinearSolver) -> Reference:
    """A reference for a problem without closed forms: y* is computed by `lower` from `y`, and the adjoint by
    `linear`.

    **Arguments:**

    - `problem`: the problem.
    - `lower`: such as `Exact()`.
    - `y`: the start of each lower solve.
    - `linear`: such as `Direct()`.

    Example: `verify`, which uses it.
    """
    return Partial(_computed, problem, lower, y, linear)


def _computed(problem: Problem, lower: LowerSolver, start: PyTree, linear: LinearSolver, x: PyTree) -> Exactly:
    y = lower.solve(problem, x, start)[0]
    upper_x, upper_y = problem.grad_upper(x, y)
    v = linear.solve(problem.hvp(x, y), upper_y)[0]
    return Exactly(y, problem.value_upper(x, y), _tree.subtract(upper_x, problem.cross(x, y)(v)))


class Plugged(LowerSolver):
    """An exact lower solve by the closed form of y*; it counts no oracle calls.

    Example: `Repeated`, another solver for the theory.
    """

    solution: Callable[[PyTree], PyTree]
    """x -> y*(x)."""

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """y*(x)."""
        return self.solution(x), Counts()


class Repeated(LowerSolver):
    """`steps` steps of another lower solver, where `steps` may be traced: one program for every T. It cannot be
    unrolled by ITD.

    **Arguments:**

    - `base`: such as `GradientDescent`.
    - `steps`: the number of steps.

    >>> from proxbi import GradientDescent
    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = Repeated(GradientDescent(0.25, steps=1), 3).solve(scalar_problem(), jnp.array(1.0), jnp.array(0.0))
    >>> float(y), int(counts.grad_lower)
    (0.875, 3)
    """

    base: FixedLength
    steps: Any = eqx.field(converter=lambda steps: jnp.asarray(steps, jnp.int32))

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """`steps` steps from `y`."""
        carry = jax.lax.fori_loop(0, self.steps, lambda _, at: self.base.step(problem, x, at), self.base.init(y))
        return self.base.answer(carry), Counts(grad_lower=self.steps)
