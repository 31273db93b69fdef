"""Convex regularizers with values everywhere finite."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from proxbi import _tree
from proxbi._check import Number, as_float, non_negative, positive, require
from proxbi._tree import Scalar
from proxbi.regularizers._base import (
    Elementwise,
    Leafwise,
    Penalty,
    Regularizer,
    from_threshold,
    indicator,
    like,
    root,
    soft,
)


class Zero(Elementwise):
    """h(x) = 0: no regularization.

    >>> import jax.numpy as jnp
    >>> print(Zero().prox(jnp.array([2.0, -1.0]), 0.5))
    [ 2. -1.]
    """

    convex: ClassVar[bool] = True

    def _value(self, x: Array) -> Array:
        return jnp.zeros_like(x)

    def _prox(self, x: Array, step: Array) -> Array:
        return x

    def _margin(self, x: Array, step: Array) -> Array:
        return jnp.full_like(x, jnp.inf)

    def _conjugate(self, x: Array) -> Array:
        return indicator(jnp.abs(x), 1)


class L1(Penalty):
    r"""The (weighted) l1 norm, $h(x) = \sum_i \lambda_i |x_i|$; its prox is soft thresholding.

    **Arguments:**

    - `strength`: $\lambda \ge 0$, a number, or an array of weights that broadcasts to the shape of every leaf of x.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(L1(0.5).prox(jnp.array([2.0, -0.25]), 1.0))
    [1.5 0. ]
    """

    convex: ClassVar[bool] = True

    def _value(self, x: Array) -> Array:
        return like(self.strength, x) * jnp.abs(x)

    def _prox(self, x: Array, step: Array) -> Array:
        return soft(x, step * like(self.strength, x))

    def _margin(self, x: Array, step: Array) -> Array:
        return from_threshold(jnp.abs(x), step * like(self.strength, x))

    def _conjugate(self, x: Array) -> Array:
        strength = like(self.strength, x)
        return indicator(jnp.abs(x) - strength, strength)


class L2(Regularizer):
    r"""The Euclidean norm of the whole pytree, $h(x) = \lambda \lVert x\rVert_2$, not squared: x shrinks, or
    vanishes as a block.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(L2(1.0).prox(jnp.array([3.0, 4.0]), 2.5))
    [1.5 2. ]
    """

    strength: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        non_negative("strength", self.strength)

    def value(self, x: PyTree) -> Scalar:
        """The norm of x, times the strength."""
        norm = _tree.norm(x)
        return like(self.strength, norm) * norm

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """Block soft thresholding of x."""
        norm = _tree.norm(x)
        return _tree.scale(_shrinkage(norm, jnp.asarray(step, norm.dtype) * like(self.strength, norm)), x)

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """How far the norm of x is from the one below which x vanishes."""
        norm = _tree.norm(x)
        return from_threshold(norm, jnp.asarray(step, norm.dtype) * like(self.strength, norm))

    def conjugate_value(self, x: PyTree) -> Scalar:
        """The indicator of the Euclidean ball of radius `strength`."""
        norm = _tree.norm(x)
        strength = like(self.strength, norm)
        return indicator(norm - strength, strength)


class SquaredL2(Penalty):
    r"""Half the squared Euclidean norm, $h(x) = \tfrac{\lambda}{2}\lVert x\rVert_2^2$ (ridge).

    **Arguments:**

    - `strength`: $\lambda \ge 0$.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(SquaredL2(2.0).prox(jnp.array([3.0, -1.5]), 0.25))
    [ 2. -1.]
    """

    convex: ClassVar[bool] = True

    def _value(self, x: Array) -> Array:
        return like(self.strength, x) / 2 * x**2

    def _prox(self, x: Array, step: Array) -> Array:
        return x / (1 + step * like(self.strength, x))

    def _margin(self, x: Array, step: Array) -> Array:
        return jnp.full_like(x, jnp.inf)

    def _conjugate(self, x: Array) -> Array:
        return _quadratic_conjugate(jnp.abs(x), like(self.strength, x))


class ElasticNet(Penalty):
    r"""$h(x) = \lambda\,(\rho \lVert x\rVert_1 + \tfrac{1-\rho}{2} \lVert x\rVert_2^2)$.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `l1_ratio`: $\rho \in [0, 1]$, the share of the l1 norm.

    Reference: Zou and Hastie, *Regularization and variable selection via the elastic net*, 2005.

    >>> import jax.numpy as jnp
    >>> print(ElasticNet(2.0, 0.5).prox(jnp.array([3.0, -0.5]), 1.0))
    [1. 0.]
    """

    l1_ratio: Number = eqx.field(converter=as_float, default=0.5)
    convex: ClassVar[bool] = True

    def __check_init__(self) -> None:
        require((self.l1_ratio >= 0) & (self.l1_ratio <= 1), f"l1_ratio must be in [0, 1], got {self.l1_ratio}.")

    def _parts(self, x: Array) -> tuple[Array, Array]:
        strength, ratio = like(self.strength, x), like(self.l1_ratio, x)
        return strength * ratio, strength * (1 - ratio)

    def _value(self, x: Array) -> Array:
        linear, quadratic = self._parts(x)
        return linear * jnp.abs(x) + quadratic / 2 * x**2

    # The prox of l|.| + q/2 (.)^2: completing the square shrinks the point and the step by 1 + tq, and what is left is
    # the prox of l|.|, so x -> soft(x / (1 + tq), tl / (1 + tq)) = soft(x, tl) / (1 + tq).
    def _prox(self, x: Array, step: Array) -> Array:
        linear, quadratic = self._parts(x)
        return soft(x, step * linear) / (1 + step * quadratic)

    def _margin(self, x: Array, step: Array) -> Array:
        return from_threshold(jnp.abs(x), step * self._parts(x)[0])

    def _conjugate(self, x: Array) -> Array:
        linear, quadratic = self._parts(x)
        return _quadratic_conjugate(jnp.maximum(jnp.abs(x) - linear, 0), quadratic, linear)


class GroupL2(Leafwise):
    r"""Group lasso, $h(x) = \lambda \sum_g \lVert x_g\rVert_2$: groups vanish as blocks.

    **Arguments:**

    - `strength`: $\lambda \ge 0$, a number (or one per group).
    - `groups`: `None`, each row along the last axis of every leaf is a group; or integer labels, x being a single
        array of their shape: entries with the same label are a group.

    Reference: Yuan and Lin, *Model selection and estimation in regression with grouped variables*, 2006.

    >>> import jax.numpy as jnp
    >>> print(GroupL2(1.0).prox(jnp.array([[3.0, 4.0], [0.5, 0.0]]), 2.5))
    [[1.5 2. ]
     [0.  0. ]]
    >>> print(GroupL2(1.0, groups=[0, 1, 0]).prox(jnp.array([3.0, 0.5, 4.0]), 2.5))
    [1.5 0.  2. ]
    """

    strength: Number = eqx.field(converter=as_float)
    groups: Int[Array, "..."] | None
    number: int | None = eqx.field(static=True)
    convex: ClassVar[bool] = True

    def __init__(self, strength: Any, groups: Any = None) -> None:
        # Labels may be any integers: they are renumbered 0, 1, ..., so that their number is known when compiling.
        self.strength = strength
        self.groups = self.number = None
        if groups is not None:
            labels = np.asarray(groups)
            if labels.dtype.kind not in "iu":
                raise TypeError(f"groups must be integer labels, got an array of {labels.dtype}.")
            names, numbers = np.unique(labels, return_inverse=True)
            self.groups, self.number = jnp.asarray(numbers.reshape(labels.shape)), len(names)

    def __check_init__(self) -> None:
        non_negative("strength", self.strength)

    def _value(self, x: Array) -> Array:
        norms = self._norms(x)
        return like(self.strength, norms) * norms

    def _prox(self, x: Array, step: Array) -> Array:
        norms = self._norms(x)
        factors = _shrinkage(norms, step * like(self.strength, norms))
        return x * (factors if self.groups is None else factors[self.groups])

    def _margin(self, x: Array, step: Array) -> Array:
        norms = self._norms(x)
        return from_threshold(norms, step * like(self.strength, norms))

    def _conjugate(self, x: Array) -> Array:
        norms = self._norms(x)
        strength = like(self.strength, norms)
        return indicator(norms - strength, strength)

    def _norms(self, x: Array) -> Array:
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), initial=0))
        largest = jnp.where(
            (largest > 0) & jnp.isfinite(largest), largest, 1
        )  # so that squares neither over- nor underflow
        squares = (x / largest) ** 2
        if self.groups is None:
            return largest * root(jnp.sum(squares, axis=-1, keepdims=True))
        if x.shape != self.groups.shape:
            raise ValueError(f"groups must have the shape of x, {x.shape}, got {self.groups.shape}.")
        return largest * root(jax.ops.segment_sum(squares.ravel(), self.groups.ravel(), num_segments=self.number))


class Huber(Penalty):
    r"""$h(x) = \lambda \sum_i \phi_\delta(x_i)$ with $\phi_\delta(u) = u^2/2$ if $|u| \le \delta$, else $\delta(|u|
    - \delta/2)$.

    **Arguments:**

    - `strength`: $\lambda \ge 0$.
    - `delta`: $\delta > 0$, where the quadratic becomes linear.

    Reference: A. Beck, *First-Order Methods in Optimization*, 2017, chapter 6.

    >>> import jax.numpy as jnp
    >>> print(Huber(1.0, 1.0).prox(jnp.array([1.0, -3.0]), 1.0))
    [ 0.5 -2. ]
    """

    delta: Number = eqx.field(converter=as_float)
    convex: ClassVar[bool] = True

    def __check_init__(self) -> None:
        positive("delta", self.delta)

    def _value(self, x: Array) -> Array:
        quadratic = jnp.minimum(jnp.abs(x), like(self.delta, x))
        return like(self.strength, x) * quadratic * (jnp.abs(x) - quadratic / 2)

    # u = x - s phi'(u) with phi' = clip: on the quadratic part u = x / (1 + s), which the clip recognises.
    def _prox(self, x: Array, step: Array) -> Array:
        moved, delta = step * like(self.strength, x), like(self.delta, x)
        return x - moved * jnp.clip(x / (1 + moved), -delta, delta)

    def _margin(self, x: Array, step: Array) -> Array:
        moved, delta = step * like(self.strength, x), like(self.delta, x)
        return from_threshold(jnp.abs(x), jnp.where(moved > 0, delta * (1 + moved), 0))

    def _conjugate(self, x: Array) -> Array:
        steepest = like(self.strength, x) * like(self.delta, x)
        return _quadratic_conjugate(jnp.abs(x), like(self.strength, x)) + indicator(jnp.abs(x) - steepest, steepest)


def _shrinkage(norm: Array, threshold: Array) -> Array:
    """max(1 - threshold / norm, 0), 0 at norm = 0."""
    outside = norm > threshold
    return jnp.where(outside, (norm - threshold) / jnp.where(outside, norm, 1), 0)


def _quadratic_conjugate(excess: Array, curvature: Array, scale: Any = 0) -> Array:
    """The conjugate of curvature / 2 u^2 at `excess` >= 0; without curvature, the indicator of excess = 0."""
    curved = curvature > 0
    return jnp.where(curved, excess**2 / jnp.where(curved, 2 * curvature, 1), indicator(excess, scale))
