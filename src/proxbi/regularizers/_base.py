"""The interface of every regularizer h: a value, a prox, and what is known about h."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from proxbi import _tree
from proxbi._check import Number, as_float, non_negative
from proxbi._module import Module
from proxbi._tree import Scalar

if TYPE_CHECKING:
    from proxbi.regularizers.calculus import Conjugate, Scaled, Shifted
    from proxbi.regularizers.sums import Sum


class Regularizer(Module):
    r"""A proper, closed function h with

    $$\mathrm{prox}_{t h}(x) \in \arg\min_u \; h(u) + \tfrac{1}{2t}\lVert u - x\rVert^2 .$$

    `prox` returns a *global* minimiser for every step t > 0, convex or not; where there are several, each class
    says which one it picks. A regularizer is a pytree: its strengths may be traced, batched and differentiated, and
    changing one recompiles nothing. x may be any pytree of floating point arrays; `value` and `prox` keep its dtype.

    Example: `L1`. How to write one: docs/extending.md.
    """

    __array_ufunc__ = None  # so that numpy's `scalar * h` comes to `__rmul__` instead of making an object array

    @property
    @abstractmethod
    def convex(self) -> bool:
        """Whether h is convex. Classes of which this is always or never true say so in a class variable."""

    @property
    @abstractmethod
    def separable(self) -> bool:
        """Whether h is a sum over the entries of x, so that `prox` may be applied to any part of x on its own."""

    @abstractmethod
    def value(self, x: PyTree) -> Scalar:
        """h(x); infinity outside the domain."""

    @abstractmethod
    def prox(self, x: PyTree, step: Any) -> PyTree:
        """A global minimiser of h(u) + |u - x|^2 / (2 step)."""

    def conjugate_value(self, x: PyTree) -> Scalar:
        """h*(x) = sup_u <x, u> - h(u), for the convex h that have it in closed form."""
        raise TypeError(f"{type(self).__name__} has no closed form for the value of its conjugate.")

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """How far x is from the next point where `prox` has a kink, or a little less; infinite if it has none, and NaN
        where that is not known. Closer than this, the prox stays on the same face (support, active constraints, rank).
        """
        return _tree.total(x) * jnp.nan

    def envelope(self, x: PyTree, step: Any) -> Scalar:
        """The Moreau envelope min_u h(u) + |u - x|^2 / (2 step): the value that `prox` attains."""
        nearest = self.prox(x, step)
        distance = _tree.subtract(nearest, x)
        squared = _tree.dot(distance, distance)
        return self.value(nearest) + squared / (2 * jnp.asarray(step, squared.dtype))

    def shift(self, offset: PyTree) -> "Shifted":
        """The function x -> h(x - offset)."""
        from proxbi.regularizers.calculus import Shifted

        return Shifted(self, offset)

    def conjugate(self) -> "Conjugate":
        """The convex conjugate h*; refuses a nonconvex h, whose conjugate does not determine its prox."""
        from proxbi.regularizers.calculus import Conjugate

        return Conjugate(self)

    def __add__(self, other: "Regularizer") -> "Sum":
        """`h + k`, for the few pairs whose prox is known: see `Sum`."""
        from proxbi.regularizers.sums import Sum

        return Sum(self, other)

    def __rmul__(self, factor: Any) -> "Scaled":
        """`factor * h`, for factor > 0."""
        from proxbi.regularizers.calculus import Scaled

        return Scaled(self, factor)


class Leafwise(Regularizer):
    """A regularizer that is a sum over the leaves of x: subclasses write it for one array.

    Example: `GroupL2`.
    """

    separable: ClassVar[bool] = False

    @abstractmethod
    def _value(self, x: Array) -> Array:
        """h of one leaf, or the terms that add up to it."""

    @abstractmethod
    def _prox(self, x: Array, step: Array) -> Array:
        """The prox of one leaf; `step` is a scalar of x's dtype."""

    def _conjugate(self, x: Array) -> Array:
        """h* of one leaf, or the terms that add up to it."""
        raise TypeError(f"{type(self).__name__} has no closed form for the value of its conjugate.")

    def _margin(self, x: Array, step: Array) -> Array:
        """The distances of the parts of one leaf from their kinks."""
        return jnp.full((), jnp.nan, x.dtype)

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """The smallest distance of a part of x from a kink of its prox."""
        distances = [self._margin(leaf, jnp.asarray(step, leaf.dtype)) for leaf in jax.tree.leaves(x)]
        return jnp.min(jnp.stack([jnp.min(distance) for distance in distances]))

    def value(self, x: PyTree) -> Scalar:
        """h(x), summed over the leaves."""
        return _tree.total(jax.tree.map(self._value, x))

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The prox of each leaf."""
        return jax.tree.map(lambda leaf: self._prox(leaf, jnp.asarray(step, leaf.dtype)), x)

    def conjugate_value(self, x: PyTree) -> Scalar:
        """h*(x), summed over the leaves: the conjugate of a separable sum is the sum of the conjugates."""
        return _tree.total(jax.tree.map(self._conjugate, x))


class Elementwise(Leafwise):
    """A regularizer that is a sum over all entries of all leaves: one term, and one scalar prox, for each entry.

    Example: `L1`.
    """

    separable: ClassVar[bool] = True


class Penalty(Elementwise):
    """An elementwise regularizer whose first argument is a strength >= 0.

    `strength` is a number, or an array that broadcasts to the shape of every leaf of x. Example: `L1`.
    """

    strength: Number = eqx.field(converter=as_float)

    def __check_init__(self) -> None:
        non_negative("strength", self.strength)


def like(parameter: Array, x: Array) -> Array:
    """A parameter in the dtype and the shape of the array it acts on; an error if it would stretch that array."""
    try:
        return jnp.broadcast_to(parameter.astype(x.dtype), x.shape)
    except ValueError as error:
        raise ValueError(f"a parameter of shape {parameter.shape} does not broadcast to shape {x.shape}.") from error


def matching(name: str, tree: PyTree, x: PyTree) -> PyTree:
    """A parameter that is a tree, leaf by leaf `like` x; the error names the parameter if the structures differ."""
    if jax.tree.structure(tree) != jax.tree.structure(x):
        raise ValueError(
            f"{name} must have the structure of x: it is {jax.tree.structure(tree)}, x is {jax.tree.structure(x)}."
        )
    return jax.tree.map(like, tree, x)


def sign(x: Array) -> Array:
    """The sign of x with sign(0) = +1: a prox that must leave 0 goes up."""
    return jnp.where(x >= 0, 1, -1).astype(x.dtype)


def soft(x: Array, threshold: Array) -> Array:
    """Soft thresholding, sign(x) max(|x| - threshold, 0): x minus its projection on [-threshold, threshold]."""
    return x - clamp(x, -threshold, threshold)


def clamp(x: Array, lower: Any, upper: Any) -> Array:
    """`jnp.clip`, except that where x is on a bound the derivative is that of the bound, not a mean of the two."""
    return jnp.where(x <= lower, lower, jnp.where(x >= upper, upper, x))


def root(x: Array) -> Array:
    """sqrt(max(x, 0)) whose derivative at x <= 0 is 0 rather than infinite or NaN."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def from_threshold(size: Array, threshold: Array) -> Array:
    """How far a size is from the threshold above which it is not set to 0; a threshold of 0 is no kink."""
    return jnp.where(threshold > 0, jnp.abs(size - threshold), jnp.inf)


def indicator(excess: Array, scale: Any) -> Array:
    """0 where a constraint is violated by at most 1000 roundings of a number of size `scale`, else infinity."""
    slack = 1000 * jnp.finfo(excess.dtype).eps * jnp.asarray(scale, excess.dtype)
    return jnp.where(excess <= slack, 0, jnp.inf).astype(excess.dtype)
