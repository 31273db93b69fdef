"""What is made of the parts of a problem whose rows are padded: nothing may see the padding, nor move it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from proxbi._tree import Scalar
from proxbi.distributed import _layout
from proxbi.glm import Design
from proxbi.regularizers import Regularizer, Separable, Zero
from proxbi.rows import ArrayRows
from proxbi.rows._own import has_rows


class OfRows(eqx.Module):
    """Weights of padded rows from those of a function of x: 0 for the padding. They are for a mean over all places, and
    so N / n times those given.
    """

    of: Callable[[PyTree], Any]
    count: int = eqx.field(static=True)
    places: int = eqx.field(static=True)
    x_count: int = eqx.field(static=True)
    x_places: int = eqx.field(static=True)
    """Of the level whose rows have entries in x, which need not be this one."""
    fill: PyTree = None
    """What stands in for the entries of x that belong to no row; see `filled`."""

    def __call__(self, x: PyTree) -> Float[Array, " places"]:
        weights = jnp.asarray(self.of(filled(x, self.fill, self.x_count, self.x_places)))
        if weights.ndim and weights.shape != (self.places,):
            raise ValueError(
                f"weights must be one number for each row: on a mesh there are {self.places} places for {self.count} "
                f"rows, and weights has shape {weights.shape}. An array that it needs beside x must be an argument, "
                "jax.tree_util.Partial(function, array), so that it can be spread too."
            )
        weights = jnp.where(_layout.real(self.places, self.count), jnp.broadcast_to(weights, (self.places,)), 0)
        return weights * jnp.asarray(self.places / self.count, weights.dtype)


# The derivative of `where` at an entry that is not chosen is 0 times what the function has there, which may be NaN:
# log x at 0. So the function itself must be given something that it can stand: the entries of the first row.
def filled(x: PyTree, fill: PyTree, count: int, places: int) -> PyTree:
    """x with `fill` in the place of entries of no row."""
    if fill is None:
        return x

    def one(leaf: Array, own: Array) -> Array:
        return jnp.where(_layout.real(places, count, leaf.ndim), leaf, own) if has_rows(leaf, places) else leaf

    return jax.tree.map(one, x, fill)


class OnRows(Regularizer):
    """A separable h on padded rows: the padding counts for nothing and stays where it is."""

    of: Regularizer
    count: int = eqx.field(static=True)
    places: int = eqx.field(static=True)

    @property
    def convex(self) -> bool:
        """As h."""
        return self.of.convex

    @property
    def separable(self) -> bool:
        """Always: others are refused."""
        return True

    def value(self, x: PyTree) -> Scalar:
        """h(x), row by row."""
        leaves = jax.tree.leaves(x)
        among = [has_rows(leaf, self.places) for leaf in leaves]
        if not any(among):
            return self.of.value(x)
        if not all(among):
            raise ValueError(
                "regularizer: x has entries for rows and others; on a mesh give each of them its own, as in "
                'Separable({"weights": Box(-3.0, 3.0), "ridge": Zero()}).'
            )
        parts, structure = jax.tree.flatten(self.of)
        axes = [0 if has_rows(part, self.places) else None for part in parts]

        def of_row(parts: list[Array], row: PyTree) -> Scalar:
            return jax.tree.unflatten(structure, parts).value(row)

        values = jax.vmap(of_row, in_axes=(axes, 0))(parts, x)
        return jnp.sum(jnp.where(_layout.real(self.places, self.count), values, 0))

    def prox(self, x: PyTree, step: Any) -> PyTree:
        """That of h for rows, and x for the padding."""

        def one(moved: Array, leaf: Array) -> Array:
            if not has_rows(leaf, self.places):
                return moved
            return jnp.where(_layout.real(self.places, self.count, leaf.ndim), moved, leaf)

        return jax.tree.map(one, self.of.prox(x, step), x)


def on_rows(h: Regularizer, count: int, places: int) -> Regularizer:
    """h on padded rows; `Separable` part by part, so that each may have rows or not."""
    if isinstance(h, Zero):
        return h
    if isinstance(h, Separable):
        parts = jax.tree.map(lambda part: on_rows(part, count, places), h.parts, is_leaf=_is_regularizer)
        return Separable(parts)
    return OnRows(h, count, places)


def _is_regularizer(node: Any) -> bool:
    return isinstance(node, Regularizer)


class SpreadRows(ArrayRows):
    """The rows of a level on the mesh: `rows` holds N places, of which `count` are rows."""

    count: int = eqx.field(static=True)

    def __len__(self) -> int:
        return self.count

    @property
    def places(self) -> int:
        """N."""
        return int(jax.tree.leaves(self.rows)[0].shape[0])


def enlarged(problem: Any, places: int, factor: int) -> Any:
    """The shapes of the problem with `factor` times as many places for the rows that x has entries for."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        # No other axis has so many entries (`places_for`); that of a transpose is its second.
        return jax.ShapeDtypeStruct([factor * n if n == places else n for n in leaf.shape], leaf.dtype)

    def named(node: Any) -> Any:
        if isinstance(node, OfRows):
            size = factor * node.places if node.places == places else node.places
            return replace(node, places=size, x_places=factor * places)
        if isinstance(node, OnRows):
            return replace(node, places=factor * places)
        if isinstance(node, Design) and node.rows == places:
            return replace(node, rows=factor * places)
        return node

    own = jax.tree.map(shape, problem)
    return jax.tree.map(named, own, is_leaf=lambda node: isinstance(node, OfRows | OnRows | Design))
