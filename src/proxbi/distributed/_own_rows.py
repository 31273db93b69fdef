"""Whether functions of rows look at their own rows only. On a mesh no device sees the entries of x that belong to rows
of others: a function that asks for them would get wrong numbers, and no error. So it is looked at here, with the first
few rows, in the process itself.

Exactly 0 is what the derivative of a row's term in the entries of other rows must be, and x and y are moved a little
before that is looked at: at a point such as 0 a derivative may vanish by chance.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxbi.glm.problem import WeightedLoss
from proxbi.rows import Batch

_FEW = 3  # rows that are looked at
_NUDGE = 0.01  # relative to 1 + |entry|


def require_own_rows(problem: Any, x0: PyTree, y0: PyTree, count: int) -> None:
    """Refuse weights, a ridge, upper or lower that mix rows."""
    x, y = _nudged(jax.tree.map(np.asarray, x0)), _nudged(jax.tree.map(np.asarray, y0))
    flags = [np.ndim(leaf) > 0 and np.shape(leaf)[0] == count for leaf in jax.tree.leaves(x)]
    few = min(_FEW, count)
    x, y = jax.tree.map(jnp.asarray, (_first_rows(x, flags, few), y))
    try:
        if isinstance(problem.lower, WeightedLoss):
            _require_own_weights(problem, x, flags, few)
        else:
            _require_own_terms(problem, x, y, flags, few)
            _require_mean(problem, x, y, flags, few)
    except (TypeError, IndexError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"the problem fails on the first rows of x0, y0 and data: {line}") from error


def _require_own_weights(problem: Any, x: PyTree, flags: list[bool], few: int) -> None:
    places = problem.lower.weights.places
    weights_of, ridge_of = (_here(f, few, places) for f in (problem.lower.weights.of, problem.lower.ridge))

    def first_weight(x: PyTree) -> Any:
        weights = jnp.asarray(weights_of(x))
        return weights[0] if weights.ndim else weights

    _require_none("weights", first_weight, x, flags, first=1)
    _require_none("ridge", lambda x: sum(map(jnp.sum, jax.tree.leaves(ridge_of(x)))), x, flags, first=0)


def _require_own_terms(problem: Any, x: PyTree, y: PyTree, flags: list[bool], few: int) -> None:
    for level in ("upper", "lower"):
        function, source = _here(getattr(problem, level), few, 0), getattr(problem.data, level)
        batch = Batch(_here(source.rows, 1, source.places), jnp.zeros(1, jnp.int32), len(source))
        _require_none(level, partial(_swapped, function, y, batch), x, flags, first=int(level == "lower"))


def _swapped(function: Callable[..., Any], y: PyTree, batch: Batch, x: PyTree) -> Any:
    return function(x, y, batch)


def _require_mean(problem: Any, x: PyTree, y: PyTree, flags: list[bool], few: int) -> None:
    """Refuse sums over rows, and terms that depend on the number of a row."""
    for level in ("upper", "lower"):
        function, source = _here(getattr(problem, level), few, 0), getattr(problem.data, level)
        seen = min(few, len(source))
        rows = _here(source.rows, seen, source.places)
        function = jax.jit(function)
        whole = function(x, y, Batch(rows, jnp.arange(seen, dtype=jnp.int32), len(source)))
        terms = []
        for k in range(seen):
            one = jax.tree.map(itemgetter(slice(k, k + 1)), rows)
            own = _rows_of(x, flags, k) if level == "lower" else x
            terms.append(function(own, y, Batch(one, jnp.zeros(1, jnp.int32), len(source))))
        mean = sum(terms) / len(terms)
        close = np.allclose(whole, mean, rtol=float(jnp.finfo(jnp.result_type(whole)).eps) ** 0.5, equal_nan=True)
        if not close:
            raise ValueError(
                f"{level} must be a mean over the rows of its batch, plus terms without rows, and use the number of a "
                f"row only as x[batch.index]: of {seen} rows it is {float(whole):.6g}, and the mean of what it is for "
                f"each of them {float(mean):.6g}."
            )


def _require_none(name: str, function: Callable[[PyTree], Any], x: PyTree, flags: list[bool], first: int) -> None:
    """Refuse a function of x that depends on entries of rows, from the `first` on."""
    slopes = jax.jit(jax.grad(lambda x: jnp.asarray(function(x)).astype(float)))(x)
    for flag, slope in zip(flags, jax.tree.leaves(slopes), strict=True):
        if flag and bool(jnp.any(slope[first:] != 0)):
            own = "the entry of x that belongs to its row" if first else "no entry of x that belongs to a row"
            raise ValueError(
                f"{name} depends on entries of x that belong to other rows: on a mesh these are on other devices. It "
                f"may use {own}, and entries of x that belong to none."
            )


def _nudged(tree: PyTree) -> PyTree:
    draw = np.random.default_rng(0)

    def one(leaf: np.ndarray) -> np.ndarray:
        moved = leaf + _NUDGE * (1 + np.abs(leaf)) * draw.uniform(0.5, 1, leaf.shape)
        return moved.astype(leaf.dtype)

    return jax.tree.map(one, tree)


def _first_rows(x: PyTree, flags: list[bool], few: int) -> PyTree:
    leaves, structure = jax.tree.flatten(x)
    cut = [leaf[:few] if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
    return jax.tree.unflatten(structure, cut)


def _rows_of(x: PyTree, flags: list[bool], k: int) -> PyTree:
    leaves, structure = jax.tree.flatten(x)
    cut = [leaf[k : k + 1] if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
    return jax.tree.unflatten(structure, cut)


def _here(tree: PyTree, few: int, places: int) -> PyTree:
    """With what this process holds of each array: all, or a few rows, which are others in other processes."""

    def one(leaf: Any) -> np.ndarray:
        part = np.asarray(leaf.addressable_shards[0].data)
        return part[:few] if np.ndim(leaf) > 0 and np.shape(leaf)[0] == places else part

    return jax.tree.map(one, tree)
