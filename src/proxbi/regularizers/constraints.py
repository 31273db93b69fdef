"""Indicators of sets: 0 inside, infinity outside; the prox is the projection, whatever the step.

A computed projection lies in its set up to rounding, so `value` allows a slack: 1000 roundings of a number of the
set's own size (the radius, say, or the larger of 1 and the bound of a box). Sets that are not products over the
entries of x are sets of whole pytrees.

The projections of optax are not used: with 64-bit mode on they return float64 for float32 or fail, their norms
overflow, and for a million entries their simplex can miss its sum by several percent.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from proxbi import _tree
from proxbi._check import Number, as_float, positive, positive_int, require
from proxbi._tree import Scalar
from proxbi.regularizers._base import Elementwise, Regularizer, clamp, indicator, like, matching


class Box(Elementwise):
    r"""$\{x : \ell_i \le x_i \le u_i\}$.

    **Arguments:**

    - `lower`, `upper`: numbers, or arrays that broadcast to the shape of every leaf of x; infinite ones do not bind.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(Box(0.0, 1.0).prox(jnp.array([-0.5, 0.5, 3.0]), 1.0))
    [0.  0.5 1. ]
    """

    lower: Number = eqx.field(converter=as_float)
    upper: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True

    def __check_init__(self) -> None:
        require(self.lower <= self.upper, f"lower must be <= upper, got lower={self.lower}, upper={self.upper}.")

    def _value(self, x: Array) -> Array:
        lower, upper = like(self.lower, x), like(self.upper, x)
        return indicator(lower - x, _at_least_one(lower)) + indicator(x - upper, _at_least_one(upper))

    def _prox(self, x: Array, step: Array) -> Array:
        return clamp(x, like(self.lower, x), like(self.upper, x))

    def _margin(self, x: Array, step: Array) -> Array:
        return jnp.minimum(jnp.abs(x - like(self.lower, x)), jnp.abs(x - like(self.upper, x)))

    def _conjugate(self, x: Array) -> Array:
        reached = jnp.where(x > 0, like(self.upper, x), like(self.lower, x))
        return jnp.where(x == 0, 0, x * jnp.where(x == 0, 0, reached))  # 0 times an infinite bound is 0 here


class NonNegative(Elementwise):
    r"""$\{x : x_i \ge 0\}$.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(NonNegative().prox(jnp.array([-0.5, 3.0]), 1.0))
    [0. 3.]
    """

    convex: ClassVar[bool] = True

    def _value(self, x: Array) -> Array:
        return indicator(-x, 1)

    def _prox(self, x: Array, step: Array) -> Array:
        return jnp.where(x > 0, x, 0)  # at 0 the derivative is that of the bound, not a mean of the two

    def _margin(self, x: Array, step: Array) -> Array:
        return jnp.abs(x)

    def _conjugate(self, x: Array) -> Array:
        return indicator(x, 1)


class LInfBall(Elementwise):
    r"""$\{x : |x_i| \le r\}$.

    **Arguments:**

    - `radius`: r > 0.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(LInfBall(1.0).prox(jnp.array([-0.5, 3.0]), 1.0))
    [-0.5  1. ]
    """

    radius: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True

    def __check_init__(self) -> None:
        positive("radius", self.radius)

    def _value(self, x: Array) -> Array:
        radius = like(self.radius, x)
        return indicator(jnp.abs(x) - radius, radius)

    def _prox(self, x: Array, step: Array) -> Array:
        radius = like(self.radius, x)
        return clamp(x, -radius, radius)

    def _margin(self, x: Array, step: Array) -> Array:
        return jnp.abs(jnp.abs(x) - like(self.radius, x))

    def _conjugate(self, x: Array) -> Array:
        return like(self.radius, x) * jnp.abs(x)


class OutsideInterval(Elementwise):
    r"""The indicator of $\{x : x_i \notin (\ell, u)\}$: every entry stays out of the open interval.

    Its prox moves the entries inside to the nearer end. Tie: the midpoint goes to `upper`. `value` accepts entries
    inside the interval by less than $1000\,\epsilon\max(1, |\text{end}|)$, with $\epsilon$ the rounding unit of x's
    dtype.

    **Arguments:**

    - `lower`, `upper`: the ends, finite, `lower` < `upper`.

    >>> import jax.numpy as jnp
    >>> print(OutsideInterval(-1.0, 1.0).prox(jnp.array([-0.5, 0.0, 3.0]), 1.0))
    [-1.  1.  3.]
    """

    lower: Number = eqx.field(converter=as_float)
    upper: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = False

    def __check_init__(self) -> None:
        ordered = jnp.isfinite(self.lower) & jnp.isfinite(self.upper) & (self.lower < self.upper)
        require(ordered, f"lower must be < upper, both finite, got lower={self.lower}, upper={self.upper}.")

    def _value(self, x: Array) -> Array:
        lower, upper = like(self.lower, x), like(self.upper, x)
        scale = jnp.maximum(1, jnp.maximum(jnp.abs(lower), jnp.abs(upper)))
        return indicator(jnp.minimum(x - lower, upper - x), scale)

    def _prox(self, x: Array, step: Array) -> Array:
        lower, upper = like(self.lower, x), like(self.upper, x)
        nearest = jnp.where(x - lower < upper - x, lower, upper)
        return jnp.where((x > lower) & (x < upper), nearest, x)


class L2Ball(Regularizer):
    r"""$\{x : \lVert x\rVert_2 \le r\}$, the norm of the whole pytree.

    **Arguments:**

    - `radius`: r > 0.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(L2Ball(1.0).prox(jnp.array([3.0, 4.0]), 1.0))
    [0.6 0.8]
    """

    radius: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive("radius", self.radius)

    def value(self, x: PyTree) -> Scalar:
        """0 in the ball, infinity outside."""
        norm = _tree.norm(x)
        radius = like(self.radius, norm)
        return indicator(norm - radius, radius)

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """x scaled back to the ball."""
        norm = _tree.norm(x)
        radius = like(self.radius, norm)
        return _tree.scale(radius / jnp.maximum(norm, radius), x)

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """The distance to the sphere."""
        norm = _tree.norm(x)
        return jnp.abs(norm - like(self.radius, norm))

    def conjugate_value(self, x: PyTree) -> Scalar:
        """The support function, radius times the norm."""
        norm = _tree.norm(x)
        return like(self.radius, norm) * norm


class _Affine(Regularizer):
    """What halfspaces and hyperplanes share; a violation is how much <normal, x> must go down."""

    normal: PyTree = eqx.field(converter=lambda tree: jax.tree.map(as_float, tree))
    offset: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        size = _tree.norm(self.normal)
        require(jnp.isfinite(size) & (size > 0), "normal must be finite and not zero.")
        require(jnp.isfinite(self.offset), f"offset must be finite, got {self.offset}.")

    @abstractmethod
    def _violation(self, excess: Scalar) -> Scalar:
        """The violation of the set from <normal, x> - offset."""

    def value(self, x: PyTree) -> Scalar:
        """0 in the set, infinity outside."""
        excess, _, offset = self._excess(x)
        return indicator(jnp.abs(self._violation(excess)), _tree.norm(x) + jnp.abs(offset))

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """x moved along the normal."""
        excess, unit, _ = self._excess(x)
        return _tree.axpy(-self._violation(excess), unit, x)

    # sup <x, u> over the set is finite only along the normal: x = c * unit gives c * offset. For the halfspace c >= 0,
    # because the set is unbounded against the normal, and c is then its own violation.
    def conjugate_value(self, x: PyTree) -> Scalar:
        """The support function."""
        _, unit, offset = self._excess(x)
        along, size = _tree.dot(unit, x), _tree.norm(x)
        across = _tree.norm(_tree.axpy(-along, unit, x))
        return indicator(across, size) + indicator(jnp.abs(along - self._violation(along)), size) + along * offset

    def _excess(self, x: PyTree) -> tuple[Scalar, PyTree, Scalar]:
        """<unit, x> - offset, unit and offset: the same set with a normal of length 1, so that no square overflows."""
        normal = matching("normal", self.normal, x)
        size = _tree.norm(normal)
        unit, offset = _tree.scale(1 / size, normal), like(self.offset, size) / size
        return _tree.dot(unit, x) - offset, unit, offset


class Halfspace(_Affine):
    r"""$\{x : \langle a, x\rangle \le b\}$.

    **Arguments:**

    - `normal`: a, a pytree like x, not zero.
    - `offset`: b.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(Halfspace(jnp.array([2.0, 0.0]), 2.0).prox(jnp.array([3.0, 4.0]), 1.0))
    [1. 4.]
    """

    def _violation(self, excess: Scalar) -> Scalar:
        return jnp.maximum(excess, 0)


class Hyperplane(_Affine):
    r"""$\{x : \langle a, x\rangle = b\}$.

    **Arguments:**

    - `normal`: a, a pytree like x, not zero.
    - `offset`: b.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(Hyperplane(jnp.array([2.0, 0.0]), 2.0).prox(jnp.array([-3.0, 4.0]), 1.0))
    [1. 4.]
    """

    def _violation(self, excess: Scalar) -> Scalar:
        return excess


class SparseSet(Regularizer):
    r"""$\{x : \#\{i : x_i \ne 0\} \le k\}$ over the whole pytree; its prox keeps the k entries of largest magnitude.

    Tie: among equal magnitudes, the entries that come first (leaves in the order of `jax.tree.leaves`) are kept.

    **Arguments:**

    - `k`: an integer > 0; part of the structure, so that changing it recompiles.

    Reference: T. Blumensath, M. E. Davies, *Iterative hard thresholding for compressed sensing*, 2009.

    >>> import jax.numpy as jnp
    >>> print(SparseSet(2).prox(jnp.array([1.0, -3.0, 1.0, 0.5]), 1.0))
    [ 1. -3.  0.  0.]
    """

    k: int = eqx.field(static=True)
    convex: ClassVar[bool] = False
    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        positive_int("k", self.k)

    def value(self, x: PyTree) -> Scalar:
        """0 if x has at most k nonzero entries, else infinity."""
        flat, _ = ravel_pytree(x)
        return jnp.where(jnp.count_nonzero(flat) <= self.k, 0, jnp.inf).astype(flat.dtype)

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """x without all but its k largest entries."""
        flat, unravel = ravel_pytree(x)
        _, largest = jax.lax.top_k(jnp.abs(flat), min(self.k, flat.size))
        return unravel(jnp.zeros_like(flat).at[largest].set(flat[largest]))


def _at_least_one(bound: Array) -> Array:
    return jnp.maximum(jnp.abs(bound), 1)
