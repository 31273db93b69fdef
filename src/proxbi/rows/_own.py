"""Whether functions of rows look at their own rows only, and are means over them.

Where rows come block by block, or lie on several devices, a function is given the entries of x that belong to its rows,
and no others: one that asks for more would get wrong numbers, and no error. So it is looked at here, on the first few
rows.

Exactly 0 is what the derivative of a row's term in the entries of other rows must be, and x and y are moved a little
before that is looked at: at a point such as 0 a derivative may vanish by chance.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from proxbi._tree import Scalar
from proxbi.rows._batches import Batch, Level

_FEW = 3  # rows that are looked at
_NUDGE = 0.01  # relative to 1 + |entry|


def has_rows(leaf: Any, rows: int) -> bool:
    """Whether the first axis of an array is that of the rows."""
    return jnp.ndim(leaf) > 0 and jnp.shape(leaf)[0] == rows


def row_terms(function: Callable[..., Scalar], x: PyTree, y: PyTree, rows: PyTree, flags: PyTree, of: int) -> Array:
    """f_i(x_i, y) for each of these rows: `function` is called with one at a time (`vmap` makes matrix products of it
    again). `flags` says which leaves of x have an entry x_i for each of them; there is nothing else to be asked for by
    mistake.
    """
    leaves, structure = jax.tree.flatten(x)
    among, alone = jax.tree.leaves(flags), jnp.zeros(1, jnp.int32)

    def of_row(leaves: list[Any], row: PyTree) -> Scalar:
        own = [leaf[None] if flag else leaf for leaf, flag in zip(leaves, among, strict=True)]
        one = jax.tree.map(lambda leaf: leaf[None], row)
        return function(jax.tree.unflatten(structure, own), y, Batch(one, alone, of))

    return jax.vmap(of_row, in_axes=([0 if flag else None for flag in among], 0))(leaves, rows)


class Trial(NamedTuple):
    """Where functions are looked at: near x0 and y0, with the entries of the first rows."""

    x: PyTree
    y: PyTree
    flags: list[bool]
    """Which leaves of x have entries for rows."""
    few: int
    """How many rows are looked at."""


def trial_at(x0: PyTree, y0: PyTree, count: int) -> Trial:
    """For `count` rows that have entries in x."""
    x, y = _nudged(jax.tree.map(np.asarray, x0)), _nudged(jax.tree.map(np.asarray, y0))
    flags, few = [has_rows(leaf, count) for leaf in jax.tree.leaves(x)], min(_FEW, count)
    own, at_y = jax.tree.map(jnp.asarray, (_cut(x, flags, slice(few)), y))
    return Trial(own, at_y, flags, few)


def require_own_rows(level: Level, function: Callable[..., Scalar], rows: PyTree, of: int, at: Trial) -> None:
    """Refuse a level that mixes rows, or is no mean over them; `rows` are the first of the `of` that there are."""
    one = Batch(jax.tree.map(itemgetter(slice(1)), rows), jnp.zeros(1, jnp.int32), of)
    try:
        require_none(level, partial(_swapped, function, at.y, one), at, first=int(level == "lower"))
        _require_mean(level, jax.jit(function), rows, of, at)
    except (TypeError, IndexError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{level} fails on the first rows of x0, y0 and data: {line}") from error


def require_none(name: str, function: Callable[[PyTree], Any], at: Trial, first: int) -> None:
    """Refuse a function of x that depends on entries of rows, from the `first` on."""
    slopes = jax.jit(jax.grad(lambda x: jnp.asarray(function(x)).astype(float)))(at.x)
    for flag, slope in zip(at.flags, jax.tree.leaves(slopes), strict=True):
        if flag and bool(jnp.any(slope[first:] != 0)):
            own = "the entry of x that belongs to its row" if first else "no entry of x that belongs to a row"
            raise ValueError(
                f"{name} depends on entries of x that belong to other rows, which are elsewhere: on other devices, or "
                f"in other blocks. It may use {own}, and entries of x that belong to none."
            )


def _require_mean(level: Level, function: Callable[..., Any], rows: PyTree, of: int, at: Trial) -> None:
    """Refuse sums over rows, and terms that depend on the number of a row."""
    seen = int(np.shape(jax.tree.leaves(rows)[0])[0])
    whole = function(at.x, at.y, Batch(rows, jnp.arange(seen, dtype=jnp.int32), of))
    terms = []
    for k in range(seen):
        one = jax.tree.map(itemgetter(slice(k, k + 1)), rows)
        own = _cut(at.x, at.flags, slice(k, k + 1)) if level == "lower" else at.x
        terms.append(function(own, at.y, Batch(one, jnp.zeros(1, jnp.int32), of)))
    mean = sum(terms) / len(terms)
    close = np.allclose(whole, mean, rtol=float(jnp.finfo(jnp.result_type(whole)).eps) ** 0.5, equal_nan=True)
    if not close:
        alone = level == "lower" and not any(at.flags)
        hint = f" No leaf of x0 has a first axis of {of:,}, the number of rows." if alone else ""
        raise ValueError(
            f"{level} must be a mean over the rows of its batch, plus terms without rows, and use the number of a "
            f"row only as x[batch.index]: of {seen} rows it is {float(whole):.6g}, and the mean of what it is for "
            f"each of them {float(mean):.6g}.{hint}"
        )


def _swapped(function: Callable[..., Any], y: PyTree, batch: Batch, x: PyTree) -> Any:
    return function(x, y, batch)


def _nudged(tree: PyTree) -> PyTree:
    draw = np.random.default_rng(0)

    def one(leaf: np.ndarray) -> np.ndarray:
        moved = leaf + _NUDGE * (1 + np.abs(leaf)) * draw.uniform(0.5, 1, leaf.shape)
        return moved.astype(leaf.dtype)

    return jax.tree.map(one, tree)


def _cut(x: PyTree, flags: list[bool], some: slice) -> PyTree:
    leaves, structure = jax.tree.flatten(x)
    return jax.tree.unflatten(
        structure, [leaf[some] if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
    )
