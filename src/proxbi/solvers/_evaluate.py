r"""A hypergradient that is as accurate as its own size asks for.

In energy norms (see `inexact.py`) let e_y, e_v be the errors of y and v and c_y, c_v the corrections made at this
point. The corrections together changed the hypergradient from d to d+, so

    E = trust * (e_y / c_y + e_v / c_v) |d+ - d|

estimates the error of d+. With s+ in dh(x+), both solves go on until E <= |d+ + s+| / 10: the accuracy follows the
progress of the outer iteration, and the larger of the two terms gets the work. Nothing in it has a unit. `trust` >= 1
grows when the estimate turned out too small.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _tree, inexact
from proxbi._tree import Scalar
from proxbi.inexact import Solution
from proxbi.linear import LinearInfo, LinearStatus
from proxbi.problem import Counts, Problem
from proxbi.secant import Inverse
from proxbi.solvers._proximal_newton import Target

ACCURACY = 0.1  # E <= this |d + s|
SOLVED = int(LinearStatus.BUDGET)
"""Statuses up to this one leave something that can be used."""
_MOST_ROUNDS = 4


class Point(NamedTuple):
    """A point and what its hypergradient evaluation found."""

    x: PyTree
    y: PyTree
    v: PyTree
    grad: PyTree
    subgradient: PyTree
    """An element of dh(x): the one the model's prox found."""
    value: Scalar
    """f - <v, g_y>."""
    penalty: Scalar
    """h(x)."""
    gap: Scalar
    """|grad + subgradient|."""
    error: Scalar
    """The estimate E of the error of grad."""
    value_error: Scalar
    accuracy: Scalar
    """The accuracy of the corrections that gave all this."""
    lower_residual: Scalar
    linear: LinearInfo
    unsolved: Bool[Array, ""]
    """Whether Newton's method on the lower problem gave up."""


def start(x: PyTree, y: PyTree) -> Point:
    """A point where nothing was evaluated yet."""
    zero, none = jnp.zeros((), jnp.result_type(*jax.tree.leaves(y))), jnp.int32(0)
    return Point(
        x=x,
        y=y,
        v=_tree.zeros_like(y),
        grad=_tree.zeros_like(x),
        subgradient=_tree.zeros_like(x),
        value=zero,
        penalty=zero,
        gap=jnp.full_like(zero, jnp.inf),
        error=zero,
        value_error=zero,
        accuracy=zero,
        lower_residual=zero,
        linear=LinearInfo(none, zero, none, none),
        unsolved=jnp.asarray(False),
    )


class _Rounds(NamedTuple):
    """The hypergradient so far, refined until its error is small beside its size."""

    found: Solution
    accuracy: Scalar
    gap: Scalar
    error: Scalar
    counts: Counts
    rounds: Int[Array, ""]


def evaluate(
    problem: Problem,
    before: Point,
    target: Target,
    accuracy: Scalar,
    trust: Scalar,
    conditioner: Inverse | None,
    steps: int,
) -> tuple[Point, Inverse | None, Counts]:
    """The hypergradient at the target, with y and v started as they were at `before`; `conditioner` knows the pairs of
    earlier lower solves, and at most `steps` CG steps are taken in one of them.
    """
    x = target.x

    def too_rough(at: _Rounds) -> Array:
        rough = at.error > ACCURACY * at.gap
        healthy = (at.found.lower_status <= SOLVED) & (at.found.status <= SOLVED) & (at.rounds < _MOST_ROUNDS)
        return (at.rounds == 0) | (rough & healthy)

    def refine(at: _Rounds) -> _Rounds:
        factor = jnp.clip(0.3 * ACCURACY * ratio(at.gap, at.error), 1e-3, 0.3)
        accuracy = jnp.where(at.rounds == 0, 1, factor) * at.accuracy
        last = at.found
        found = inexact.solve(problem, x, last.y, last.v, accuracy, last.sizes, last.conditioner, steps)
        fractions = ratio(found.errors[0], found.sizes[0]) + ratio(found.errors[1], found.sizes[1])
        change = _tree.norm(_tree.subtract(found.grad, before.grad))
        return _Rounds(
            found=found._replace(counts=jax.tree.map(jnp.int32, found.counts)),
            accuracy=accuracy,
            gap=_tree.norm(_tree.axpy(1, target.subgradient, found.grad)),
            error=trust * fractions * change,
            counts=jax.tree.map(jnp.int32, at.counts + found.counts),
            rounds=at.rounds + 1,
        )

    zero, none = jnp.zeros_like(accuracy), jnp.int32(0)
    counts = jax.tree.map(jnp.int32, Counts())
    start = Solution(
        y=before.y,
        v=before.v,
        grad=before.grad,
        value=zero,
        gradient=before.y,
        sizes=(zero, zero),
        errors=(zero, zero),
        residual=zero,
        rhs=zero,
        lower_status=none,
        status=none,
        iterations=none,
        counts=counts,
        conditioner=conditioner,
    )
    at = jax.lax.while_loop(too_rough, refine, _Rounds(start, accuracy, zero, zero, counts, none))
    found = at.found
    status = jnp.where(found.lower_status > SOLVED, found.lower_status, found.status)
    point = Point(
        x=x,
        y=found.y,
        v=found.v,
        grad=found.grad,
        subgradient=target.subgradient,
        value=found.value - _tree.dot(found.v, found.gradient),
        penalty=problem.regularizer.value(x).astype(accuracy.dtype),
        gap=at.gap,
        error=at.error,
        value_error=found.errors[0] * found.errors[1],
        accuracy=at.accuracy,
        lower_residual=_tree.norm(found.gradient),
        linear=LinearInfo(status, ratio(found.residual, found.rhs), found.iterations, at.counts.hvp),
        unsolved=found.lower_status == SOLVED,
    )
    return point, found.conditioner, at.counts


def ratio(a: Scalar, b: Scalar) -> Scalar:
    """a / b, and 0 for b = 0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
