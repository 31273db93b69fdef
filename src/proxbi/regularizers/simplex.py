"""The simplex and the l1 ball, whose projections are one piecewise linear equation."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from proxbi import _tree
from proxbi._check import Number, as_float, positive
from proxbi._tree import Scalar
from proxbi.regularizers._base import Regularizer, indicator, like


class Simplex(Regularizer):
    r"""$\{x : x_i \ge 0, \sum_i x_i = r\}$, over the whole pytree; probabilities for r = 1.

    **Arguments:**

    - `scale`: r > 0.

    Reference: Michelot, *A finite algorithm for finding the projection of a point onto the canonical simplex*, 1986.

    >>> import jax.numpy as jnp
    >>> print(Simplex().prox(jnp.array([1.5, 1.0, -1.0]), 1.0))
    [0.75 0.25 0.  ]
    """

    scale: Number = eqx.field(converter=as_float, default=1.0)
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("scale", self.scale)

    def value(self, x: PyTree) -> Scalar:
        """0 on the simplex, infinity outside."""
        flat, _ = ravel_pytree(x)
        total = jnp.sum(flat)
        scale = like(self.scale, total)
        return indicator(jnp.maximum(jnp.abs(total - scale), -jnp.min(flat)), scale)

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The projection on the simplex."""
        flat, unravel = ravel_pytree(x)
        return unravel(_project_simplex(flat, like(self.scale, flat[0])))

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """The smallest |x_i - tau|, where p = max(x - tau, 0) is the projection."""
        flat, _ = ravel_pytree(x)
        projected = _project_simplex(flat, like(self.scale, flat[0]))
        largest = jnp.argmax(flat)
        return jnp.min(jnp.abs(flat - (flat[largest] - projected[largest])))

    def conjugate_value(self, x: PyTree) -> Scalar:
        """The support function, scale times the largest entry."""
        flat, _ = ravel_pytree(x)
        return like(self.scale, flat[0]) * jnp.max(flat)


class L1Ball(Regularizer):
    r"""$\{x : \lVert x\rVert_1 \le r\}$, the norm of the whole pytree.

    **Arguments:**

    - `radius`: r > 0.

    Reference: Duchi et al., *Efficient projections onto the l1-ball for learning in high dimensions*, 2008.

    >>> import jax.numpy as jnp
    >>> print(L1Ball(1.0).prox(jnp.array([1.5, -1.0, 0.25]), 1.0))
    [ 0.75 -0.25  0.  ]
    """

    radius: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("radius", self.radius)

    def value(self, x: PyTree) -> Scalar:
        """0 in the ball, infinity outside."""
        norm = _tree.total(jax.tree.map(jnp.abs, x))
        radius = like(self.radius, norm)
        return indicator(norm - radius, radius)

    # Outside the ball the projection keeps the signs, and its magnitudes are those of |x| projected on the simplex.
    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The projection on the ball."""
        flat, unravel = ravel_pytree(x)
        magnitudes = jnp.abs(flat)
        radius = like(self.radius, flat[0])
        projected = jnp.sign(flat) * _project_simplex(magnitudes, radius)
        return unravel(jnp.where(jnp.sum(magnitudes) <= radius, flat, projected))

    def conjugate_value(self, x: PyTree) -> Scalar:
        """The support function, radius times the largest magnitude."""
        flat, _ = ravel_pytree(x)
        return like(self.radius, flat[0]) * jnp.max(jnp.abs(flat))


# The projection is p = max(v - tau, 0) with sum p = scale: a decreasing, convex, piecewise linear equation in tau,
# which Newton solves from the left: among the entries above tau, spread the excess of their sum evenly, and repeat.
# If m of n entries drop out at a step, the excess that remains is at most m/n of what it was (each falls short of 0
# by no more than the step, excess / n). So either few drop out and the excess collapses, or many do and soon none
# is left: 40 steps are enough for any million entries in double precision, and 5 to 15 are usual.
# The iteration carries p = v - tau rather than tau: the rounding of tau, times a million entries, would spoil the sum.
# It is not differentiated. From the support it found, the last steps start again at v: they remove the rounding of
# those before them and, on a fixed support the projection being affine, they have its derivative.
def _project_simplex(values: Float[Array, " n"], scale: Scalar) -> Float[Array, " n"]:
    """The projection of a vector on {p >= 0, sum p = scale}."""
    values = values - jax.lax.stop_gradient(jnp.max(values))  # changes nothing, and now tau is in [-scale, 0]
    support = _support(*jax.lax.stop_gradient((values, scale)))
    for _ in range(3):
        values = _balance(values, support, scale)
        support = values > 0
    return jnp.maximum(values, 0)


def _support(values: Float[Array, " n"], scale: Scalar) -> Bool[Array, " n"]:
    """The entries where the projection is positive, for values <= 0 that reach 0."""

    def drop(state: tuple[Array, Array]) -> tuple[Array, Array]:
        points, _ = state
        return _balance(points, points > 0, scale), jnp.sum(points > 0)

    def dropped(state: tuple[Array, Array]) -> Array:
        points, before = state
        return jnp.sum(points > 0) < before

    relevant = jnp.maximum(values, -scale)
    start = _balance(relevant, jnp.ones_like(values, dtype=bool), scale), jnp.asarray(values.size + 1)
    points, _ = jax.lax.while_loop(dropped, drop, start)
    return points > 0


def _balance(points: Array, support: Array, total: Scalar) -> Array:
    """`points` moved together so that those in the support sum to `total`."""
    excess = jnp.sum(jnp.where(support, points, 0)) - total
    return points - excess / jnp.sum(support).astype(points.dtype)
