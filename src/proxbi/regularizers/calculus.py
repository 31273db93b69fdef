"""New regularizers from old: scaling, translation, sums over parts of a pytree, smoothing, conjugation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from proxbi import _tree
from proxbi._check import Number, as_float, positive
from proxbi._tree import Scalar
from proxbi.regularizers._base import Regularizer, like, matching


class _Wrapper(Regularizer):
    """What is made of one regularizer h is convex, or separable, as h is (but for conjugates, always convex)."""

    regularizer: Regularizer

    @property
    def convex(self) -> bool:
        """As h."""
        return self.regularizer.convex

    @property
    def separable(self) -> bool:
        """As h."""
        return self.regularizer.separable


class Scaled(_Wrapper):
    r"""$x \mapsto c\, h(x)$, written `c * h`.

    **Arguments:**

    - `regularizer`: h.
    - `factor`: c > 0.

    >>> import jax.numpy as jnp
    >>> from proxbi.regularizers import L1
    >>> print((2.0 * L1(0.25)).prox(jnp.array([2.0, -0.25]), 1.0))
    [1.5 0. ]
    """

    factor: Number = eqx.field(converter=as_float)

    def __check_init__(self) -> None:
        positive("factor", self.factor)

    def value(self, x: PyTree) -> Scalar:
        """The factor times h(x)."""
        value = self.regularizer.value(x)
        return like(self.factor, value) * value

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The prox of h with a step `factor` times as long."""
        step = as_float(step)
        return self.regularizer.prox(x, like(self.factor, step) * step)

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """As that of h, with a step `factor` times as long."""
        step = as_float(step)
        return self.regularizer.margin(x, like(self.factor, step) * step)

    def conjugate_value(self, x: PyTree) -> Scalar:
        """c h*(x / c)."""
        value = self.regularizer.conjugate_value(_tree.scale(1 / self.factor, x))
        return like(self.factor, value) * value


class Shifted(_Wrapper):
    r"""$x \mapsto h(x - b)$, written `h.shift(b)`: h with its origin moved to b.

    **Arguments:**

    - `regularizer`: h.
    - `offset`: b, a pytree of the structure of x.

    >>> import jax.numpy as jnp
    >>> from proxbi.regularizers import L1
    >>> print(L1(0.5).shift(1.0).prox(jnp.array([2.0, 0.75]), 1.0))
    [1.5 1. ]
    """

    offset: PyTree = eqx.field(converter=lambda tree: jax.tree.map(as_float, tree))

    def value(self, x: PyTree) -> Scalar:
        """h(x - offset)."""
        return self.regularizer.value(_tree.subtract(x, matching("offset", self.offset, x)))

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """The prox of h seen from the offset."""
        offset = matching("offset", self.offset, x)
        return _tree.axpy(1, offset, self.regularizer.prox(_tree.subtract(x, offset), step))

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """That of h, seen from the offset."""
        return self.regularizer.margin(_tree.subtract(x, matching("offset", self.offset, x)), step)

    def conjugate_value(self, x: PyTree) -> Scalar:
        """h*(x) + <x, offset>."""
        return self.regularizer.conjugate_value(x) + _tree.dot(x, matching("offset", self.offset, x))


class Separable(Regularizer):
    r"""A sum of regularizers, each of its own part of x: $h(x) = \sum_k h_k(x_k)$.

    **Arguments:**

    - `parts`: a pytree of regularizers, whose structure is that of x or of its upper levels: `Separable({"w":
        L1(0.1), "b": Zero()})` is for an x with entries "w" and "b", which may be arrays or pytrees themselves.

    >>> import jax.numpy as jnp
    >>> from proxbi.regularizers import L1, Zero
    >>> h = Separable({"w": L1(0.5), "b": Zero()})
    >>> print(h.prox({"w": jnp.array([2.0, -0.25]), "b": jnp.array(3.0)}, 1.0)["w"])
    [1.5 0. ]
    """

    parts: PyTree

    def __check_init__(self) -> None:
        for path, part in jax.tree_util.tree_leaves_with_path(self.parts, is_leaf=_is_regularizer):
            if not _is_regularizer(part):
                raise TypeError(f"parts{jax.tree_util.keystr(path)} must be a regularizer, got {part!r}.")

    @property
    def convex(self) -> bool:
        """Whether all parts are."""
        return all(part.convex for part in self._leaves())

    @property
    def separable(self) -> bool:
        """Whether all parts are."""
        return all(part.separable for part in self._leaves())

    def value(self, x: PyTree) -> Scalar:
        """The sum of the values of the parts."""
        return _tree.total([part.value(piece) for part, piece in self._pairs(x)])

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """Each part's prox of its piece of x."""
        structure = jax.tree.structure(self.parts, is_leaf=_is_regularizer)
        return jax.tree.unflatten(structure, [part.prox(piece, step) for part, piece in self._pairs(x)])

    def margin(self, x: PyTree, step: Any) -> Scalar:
        """The smallest of the parts."""
        return jnp.min(jnp.stack([part.margin(piece, step) for part, piece in self._pairs(x)]))

    def conjugate_value(self, x: PyTree) -> Scalar:
        """The sum of the conjugates of the parts."""
        return _tree.total([part.conjugate_value(piece) for part, piece in self._pairs(x)])

    def _leaves(self) -> list[Regularizer]:
        return jax.tree.leaves(self.parts, is_leaf=_is_regularizer)

    def _pairs(self, x: PyTree) -> list[tuple[Regularizer, PyTree]]:
        structure = jax.tree.structure(self.parts, is_leaf=_is_regularizer)
        try:
            pieces = structure.flatten_up_to(x)
        except ValueError as error:
            raise ValueError(_difference(self.parts, x)) from error
        return list(zip(self._leaves(), pieces, strict=True))


class MoreauEnvelope(_Wrapper):
    r"""$x \mapsto \min_u h(u) + \tfrac{1}{2\mu}\lVert u - x\rVert^2$: h smoothed from below.

    For a convex h it has the gradient $(x - \mathrm{prox}_{\mu h}(x)) / \mu$ everywhere; otherwise, wherever the
    prox is unique.

    **Arguments:**

    - `regularizer`: h.
    - `smoothing`: $\mu > 0$.

    Reference: Moreau, *Proximite et dualite dans un espace hilbertien*, 1965.

    >>> import jax.numpy as jnp
    >>> from proxbi.regularizers import L1
    >>> print(MoreauEnvelope(L1(1.0), 1.0).value(jnp.array([0.5, -3.0])))
    2.625
    """

    smoothing: Number = eqx.field(converter=as_float)

    def __check_init__(self) -> None:
        positive("smoothing", self.smoothing)

    def value(self, x: PyTree) -> Scalar:
        """The envelope of h at x."""
        return self.regularizer.envelope(x, self.smoothing)

    # With m for the smoothing, the prox minimises over u, and inside it the envelope minimises over v,
    #     h(v) + |v - u|^2 / 2m + |u - x|^2 / 2t.
    # Do u first: for a fixed v the best is u = (tv + mx) / (t + m), and the two squares become |v - x|^2 / 2(t +
    # m). So v is a prox of h at x with step t + m, and u = x + t/(t+m) (v - x). Minima may be exchanged whatever h
    # is: no convexity.
    def prox(self, x: PyTree, step: Any) -> PyTree:
        """A part t / (t + smoothing) of the way from x to the prox of h with the step t + smoothing."""
        step = as_float(step)
        longer = step + like(self.smoothing, step)
        return _tree.axpy(step / longer, _tree.subtract(self.regularizer.prox(x, longer), x), x)

    def conjugate_value(self, x: PyTree) -> Scalar:
        """h*(x) + smoothing/2 |x|^2: the conjugate of an infimal convolution is the sum of the conjugates."""
        squared = _tree.dot(x, x)
        return self.regularizer.conjugate_value(x) + like(self.smoothing, squared) / 2 * squared


class Conjugate(_Wrapper):
    r"""The convex conjugate $h^*(x) = \sup_u \langle x, u\rangle - h(u)$ of a convex h, written `h.conjugate()`.

    Where $h^*$ is an indicator, its prox is feasible up to roundings of the size of x: for an x far outside (1000
    times the radius) use the class of the set itself, if there is one.

    **Arguments:**

    - `regularizer`: h, convex.

    Its prox is that of h by Moreau's identity, $\mathrm{prox}_{t h^*}(x) = x - t\,\mathrm{prox}_{h/t}(x/t)$.

    Reference: J.-J. Moreau, *Proximité et dualité dans un espace hilbertien*, 1965.

    >>> import jax.numpy as jnp
    >>> from proxbi.regularizers import L1
    >>> print(L1(1.0).conjugate().prox(jnp.array([0.5, -3.0]), 2.0))
    [ 0.5 -1. ]
    """

    def __check_init__(self) -> None:
        if not self.regularizer.convex:
            raise TypeError(
                f"the conjugate needs a convex regularizer, and {type(self.regularizer).__name__} is not convex: "
                "its conjugate is that of its convex hull."
            )

    @property
    def convex(self) -> bool:
        """Always: a conjugate is a supremum of affine functions."""
        return True

    def value(self, x: PyTree) -> Scalar:
        """h*(x), for the h that have it in closed form."""
        return self.regularizer.conjugate_value(x)

    # Moreau's identity: x = prox_{t h*}(x) + t prox_{h/t}(x/t).
    def prox(self, x: PyTree, step: Any) -> PyTree:
        """What the prox of h, with step 1/t at x/t, leaves over."""
        step = as_float(step)
        return _tree.axpy(-step, self.regularizer.prox(_tree.scale(1 / step, x), 1 / step), x)

    def conjugate_value(self, x: PyTree) -> Scalar:
        """h(x): a closed convex h is the conjugate of its conjugate."""
        return self.regularizer.value(x)


def _is_regularizer(node: Any) -> bool:
    return isinstance(node, Regularizer)


def _difference(parts: PyTree, x: PyTree) -> str:
    """Which entries of x have no regularizer, and which regularizers have no entry."""
    regularized = [path for path, _ in jax.tree_util.tree_leaves_with_path(parts, is_leaf=_is_regularizer)]
    entries = [path for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    bare = [path for path in entries if not any(path[: len(part)] == part for part in regularized)]
    idle = [part for part in regularized if not any(path[: len(part)] == part for path in entries)]
    problems = [f"x{jax.tree_util.keystr(path)} has no regularizer" for path in bare]
    problems += [f"x has no entry {jax.tree_util.keystr(path)} for its regularizer" for path in idle]
    return (
        "Separable and x differ in structure: " + ("; ".join(problems) or "the kinds of their containers differ") + "."
    )
