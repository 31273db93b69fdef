"""Sums of a penalty and a constraint, for the pairs whose prox is known exactly."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from proxbi import _tree
from proxbi._tree import Scalar
from proxbi.regularizers._base import Regularizer, clamp, like
from proxbi.regularizers.constraints import Box, NonNegative
from proxbi.regularizers.convex import L1, GroupL2

_KNOWN = "L1 + Box, L1 + NonNegative and GroupL2 + NonNegative"


class Sum(Regularizer):
    r"""$h(x) = p(x) + c(x)$ of a penalty and a constraint, written `p + c`.

    The prox of a sum is not made of the two proxes, but for a few pairs: `L1` with `Box` or `NonNegative`, where the
    prox of p is followed by the projection; and `GroupL2` with `NonNegative`, where it is preceded by it. Others are
    refused.

    **Arguments:**

    - `penalty`, `constraint`: p and c, in either order.

    Reference: Y.-L. Yu, *On decomposing the proximal map*, 2013.

    >>> import jax.numpy as jnp
    >>> print((L1(0.5) + Box(-1.0, 1.0)).prox(jnp.array([2.0, -0.25, 0.75]), 1.0))
    [1.   0.   0.25]
    >>> print((GroupL2(1.0, [0, 0]) + NonNegative()).prox(jnp.array([2.0, -1.0]), 1.0))
    [1. 0.]
    """

    penalty: Regularizer
    constraint: Regularizer

    def __init__(self, penalty: Regularizer, constraint: Regularizer) -> None:
        swapped = isinstance(penalty, Box | NonNegative)
        self.penalty, self.constraint = (constraint, penalty) if swapped else (penalty, constraint)

    def __check_init__(self) -> None:
        for part in (self.penalty, self.constraint):
            if not isinstance(part, Regularizer):
                raise TypeError(f"only regularizers can be added to a regularizer, got {type(part).__name__}.")
        entrywise = isinstance(self.penalty, L1) and isinstance(self.constraint, Box | NonNegative)
        grouped = isinstance(self.penalty, GroupL2) and isinstance(self.constraint, NonNegative)
        if not (entrywise or grouped):
            names = f"{type(self.penalty).__name__} + {type(self.constraint).__name__}"
            raise TypeError(
                f"{names} has no prox in closed form, as that of a sum is not made of those of its parts. Known are "
                f"{_KNOWN}; parts of x with regularizers of their own are for Separable."
            )

    @property
    def convex(self) -> bool:
        """Always: both parts are."""
        return True

    @property
    def separable(self) -> bool:
        """As the penalty."""
        return self.penalty.separable

    def value(self, x: PyTree) -> Scalar:
        """p(x) + c(x)."""
        return self.penalty.value(x) + self.constraint.value(x)

    # One entry: what minimises a convex function over an interval is its minimiser, projected on the interval.
    # A group: let x+ = max(x, 0). Where x_i <= 0, u_i = 0 is best: any u_i > 0 costs more in both terms. Among u that
    # vanish there, the distance to x and to x+ differ by a constant, and the minimiser for x+, which is a multiple of
    # x+, is feasible.
    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The penalty's prox, projected; for groups, that of the projection."""
        if isinstance(self.penalty, GroupL2):
            return self.penalty.prox(self.constraint.prox(x, step), step)
        return self.constraint.prox(self.penalty.prox(x, step), step)

    # On x_i <= 0 nothing is gained from u_i > 0. In a box, the sup of a concave, piecewise linear function is attained
    # at an end, or at the point next to 0.
    def conjugate_value(self, x: PyTree) -> Scalar:
        """The conjugate of the penalty at max(x, 0); for a box, the best of its ends and of its point next to 0."""
        if isinstance(self.constraint, NonNegative):
            return self.penalty.conjugate_value(self.constraint.prox(x, 1.0))
        return _tree.total(jax.tree.map(self._in_box, x))

    def _in_box(self, x: Array) -> Array:
        box: Any = self.constraint
        penalty: Any = self.penalty
        strength, lower, upper = (like(number, x) for number in (penalty.strength, box.lower, box.upper))

        def gained(u: Array) -> Array:
            slope = x - strength * jnp.sign(u)
            return jnp.where((u == 0) | (slope == 0), 0, u * slope)

        return jnp.maximum(gained(clamp(jnp.zeros_like(x), lower, upper)), jnp.maximum(gained(lower), gained(upper)))

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """The smaller of the margins of the two maps; the prox of the penalty moves no two points further apart."""
        grouped = isinstance(self.penalty, GroupL2)
        first, second = (self.constraint, self.penalty) if grouped else (self.penalty, self.constraint)
        return jnp.minimum(first.margin(x, step), second.margin(first.prox(x, step), step))
