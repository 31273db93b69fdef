"""The rows of both levels, and the batches that upper and lower are called with, which carry their row numbers."""

from collections.abc import Callable, Iterable, Sized
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from proxbi import _check, _tree
from proxbi.rows._sources import ArrayRows, IterableRows, MapRows, MemmapRows, RowError, RowSource

Level = Literal["upper", "lower"]
LEVELS: tuple[Level, Level] = ("upper", "lower")
T = TypeVar("T")


class Batch(eqx.Module):
    """Some rows, and which: `batch["features"]` are leaves of `rows`, `x[batch.index]` the entries of x that belong to
    them.

    Example: `Rows`.
    """

    rows: PyTree
    """The rows, along the first axis of each leaf."""
    index: Int[Array, " batch"]
    """Their numbers."""
    of: int = eqx.field(static=True, default=0)
    """The number of rows in total; 0 if unknown."""

    def __getitem__(self, name: Any) -> Any:
        return self.rows[name]

    def __len__(self) -> int:
        return int(self.index.shape[0])


class Rows(eqx.Module):
    r"""Data of a `Problem` whose f and g are means over rows: `Problem(upper, lower, data=Rows(upper=..., lower=...))`.

    upper and lower are then called with a `Batch` of their own level. They must be *means* over its rows, plus terms
    without rows such as a penalty, so that the mean over batches is the function of all rows.

    **Arguments:**

    - `upper`, `lower`: the rows of each level. A pytree of arrays with rows along their first axis lives on the device.
      Where a leaf is an `np.memmap`, for a data set with `len` and `[i]`, or for a `RowSource` of your own, rows stay
      on the host and come batch by batch. An iterable of batches works too, for solvers that need nothing else.
    - `classes`: refuse integers outside of 0..classes-1 in leaves of one axis, which JAX would clip without a word.

    >>> import numpy as np
    >>> rows = Rows(upper={"z": np.zeros((5, 3))}, lower={"z": np.ones((8, 3)), "t": np.arange(8)}, classes=8)
    >>> len(rows.lower), rows.batch("lower", jnp.array([2, 7]))["t"].tolist()
    (8, [2, 7])
    """

    upper: Any
    lower: Any
    classes: int | None = eqx.field(static=True, default=None)

    def __init__(self, upper: Any, lower: Any, classes: int | None = None):
        if classes is not None:
            _check.positive_int("classes", classes)
        self.upper, self.lower, self.classes = _source("upper", upper), _source("lower", lower), classes
        for name in LEVELS:
            if isinstance(source := getattr(self, name), ArrayRows):
                checked_rows(name, source.rows, None, classes)

    @property
    def on_host(self) -> bool:
        """Whether rows of a level come from the host."""
        return any(isinstance(getattr(self, name), RowSource) for name in LEVELS)

    def level(self, name: Level) -> Batch:
        """All rows of a level, or the batch that stands for it."""
        source = getattr(self, name)
        if isinstance(source, Batch):
            return source
        if isinstance(source, RowSource):
            raise RowError(
                f"the rows of {name} are on the host and cannot all be used at once: take a solver that works on "
                "batches, such as ProxSOBA(), or give arrays."
            )
        return Batch(source.rows, jnp.arange(len(source), dtype=jnp.int32), len(source))

    def batch(self, name: Level, index: Any) -> Batch:
        """The rows with these numbers; a level that is a batch already is left as it is."""
        source = getattr(self, name)
        if isinstance(source, Batch):
            return source
        if isinstance(source, ArrayRows):
            return Batch(source.take(index), index, len(source))
        if isinstance(source, IterableRows):
            taken = source.take(np.zeros(0, np.int32))
            return _checked_batch(name, taken, np.full(len(jax.tree.leaves(taken)[0]), -1), self.classes, 0)
        return _checked_batch(name, source.take(np.asarray(index)), np.asarray(index), self.classes, len(source))

    def block(self, name: Level, start: int, stop: int) -> Batch:
        """Rows `start` to `stop - 1` of a level."""
        source = getattr(self, name)
        index = np.arange(start, stop, dtype=np.int32)
        if isinstance(source, RowSource):
            return _checked_batch(name, source.block(start, stop), index, self.classes, len(source))
        return self.batch(name, index)

    def having(self, **levels: Batch) -> "Rows":
        """With batches as levels."""
        return eqx.tree_at(
            lambda r: [getattr(r, name) for name in levels], self, list(levels.values()), is_leaf=_is_source
        )


def mean_over_blocks(function: Callable[[Batch], T], rows: Batch, size: int) -> T:
    """The mean of `function` over all rows, which it sees in blocks of `size`: memory is that of one block.

    **Arguments:**

    - `function`: of a batch, with a pytree of means over its rows as value.
    - `rows`: all rows, as one batch.
    - `size`: how many rows `function` sees at a time.

    **Returns:** what `function` would give for all rows at once.

    >>> rows = Batch({"z": jnp.arange(5.0)}, jnp.arange(5))
    >>> print(mean_over_blocks(lambda batch: jnp.mean(batch["z"]), rows, 2))
    2.0
    """
    count, whole = len(rows), len(rows) // size

    def block(number: Any) -> Any:
        cut = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number * size, size), rows)
        return _tree.scale(size / count, function(cut))

    if whole == 0:
        return function(rows)
    total = block(0)
    if whole > 1:
        total = jax.lax.fori_loop(1, whole, lambda k, sum: _tree.axpy(1, block(k), sum), total)
    if rest := count - whole * size:
        last = function(jax.tree.map(lambda leaf: leaf[whole * size :], rows))
        total = _tree.axpy(rest / count, last, total)
    return total


def checked_rows(name: str, rows: PyTree, numbers: np.ndarray | None, classes: int | None) -> None:
    """Refuse NaN and classes out of range, with the numbers of the rows that have them."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        if isinstance(leaf, jax.core.Tracer):
            continue
        where, values = name + jax.tree_util.keystr(path), np.asarray(leaf)
        if values.dtype.kind in "fc":
            _refuse(where, ~np.isfinite(values), numbers, "NaN or infinite values")
        if classes is not None and values.dtype.kind in "iu" and values.ndim == 1:
            _refuse(where, (values < 0) | (values >= classes), numbers, f"values outside of 0..{classes - 1}")


def _refuse(where: str, bad: np.ndarray, numbers: np.ndarray | None, what: str) -> None:
    if not bad.any():
        return
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    rows = rows if numbers is None else numbers[rows]
    shown = ", ".join(map(str, rows[:_SHOWN])) + (", ..." if len(rows) > _SHOWN else "")
    raise RowError(f"{where} has {what} in {len(rows)} row(s): {shown}.")


_SHOWN = 5  # rows that a message names


def _checked_batch(name: Level, rows: PyTree, numbers: np.ndarray, classes: int | None, of: int) -> Batch:
    lengths = {int(np.shape(leaf)[0]) for leaf in jax.tree.leaves(rows)}
    if lengths != {len(numbers)}:
        raise RowError(f"{name}: a batch of {len(numbers)} rows was asked for, and {sorted(lengths)} came.")
    checked_rows(name, rows, numbers, classes)
    return Batch(jax.tree.map(jnp.asarray, rows), jnp.asarray(numbers, jnp.int32), of)


def _source(name: Level, given: Any) -> Any:
    """The rows of a level, as a source."""
    if isinstance(given, ArrayRows | Batch | IterableRows):
        return given
    if isinstance(given, RowSource):
        return _not_empty(name, given)
    if jax.tree_util.all_leaves([given]) and not hasattr(given, "shape"):
        if isinstance(given, Sized) and hasattr(given, "__getitem__"):
            return _not_empty(name, MapRows(given))
        if isinstance(given, Iterable):
            return IterableRows(given)
    leaves = jax.tree_util.tree_leaves_with_path(given)
    if not leaves:
        raise RowError(f"{name} has no rows: it is an empty pytree.")
    for path, leaf in leaves:
        if not _check.is_numeric(leaf) or np.ndim(leaf) == 0:
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} must be a numeric array with rows along its first axis, got "
                f"{type(leaf).__name__}."
            )
    _require_one_length(name, [(jax.tree_util.keystr(path), np.shape(leaf)[0]) for path, leaf in leaves])
    if any(isinstance(leaf, np.memmap) for _, leaf in leaves):
        return _not_empty(name, MemmapRows(given))
    return _not_empty(name, ArrayRows(jax.tree.map(jnp.asarray, given)))


def _require_one_length(name: Level, lengths: list[tuple[str, int]]) -> None:
    (first, count), *others = lengths
    for path, other in others:
        if other != count:
            raise RowError(f"{name}{path} has {other} rows, but {name}{first} has {count}.")


def _not_empty(name: Level, source: Any) -> Any:
    if len(source) == 0:
        raise RowError(f"{name} has no rows: its length is 0.")
    return source


def _is_source(node: Any) -> bool:
    return isinstance(node, ArrayRows | Batch | RowSource)
