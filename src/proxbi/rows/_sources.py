"""Where rows come from: arrays on the device, files mapped into memory, data sets with `len` and `[i]`, iterables."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

_SEEN = 3  # rows at each end that stand for a source in its description


class RowError(ValueError):
    """Rows that cannot be used: which level, which leaf, which rows."""


class RowSource(ABC):
    """Rows on the host: subclass it for files of your own.

    `len(source)` is the number of rows; `take(indices)` and `block(start, stop)` return a pytree of NumPy arrays with
    these rows along their first axis.

    >>> class Squares(RowSource):
    ...     def __len__(self):
    ...         return 10
    ...
    ...     def take(self, indices):
    ...         return {"square": np.asarray(indices) ** 2}
    >>> Squares().block(2, 5)["square"].tolist()
    [4, 9, 16]
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def take(self, indices: np.ndarray) -> PyTree:
        """The rows with these numbers, in this order."""

    def block(self, start: int, stop: int) -> PyTree:
        """Rows `start` to `stop - 1`."""
        return self.take(np.arange(start, stop))

    def describe(self) -> PyTree:
        """What tells this source from another one, for checkpoints: its length and a few rows of it. (To read all of
        them would take as long as an epoch.)
        """
        ends = min(_SEEN, len(self))
        return len(self), self.block(0, ends), self.block(len(self) - ends, len(self))


class ArrayRows(eqx.Module):
    """Arrays on the device, rows along their first axis: a pytree, so that compiled code can take from it.

    >>> ArrayRows({"t": jnp.arange(5)}).take(jnp.array([3, 1]))["t"].tolist()
    [3, 1]
    """

    rows: PyTree
    """The arrays."""

    def __len__(self) -> int:
        return int(jax.tree.leaves(self.rows)[0].shape[0])

    def take(self, indices: Any) -> PyTree:
        """The rows with these numbers."""
        return jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis=0), self.rows)


class MemmapRows(RowSource):
    """A pytree of arrays of which some are `np.memmap`: only the rows of a batch are read.

    **Arguments:**

    - `rows`: the arrays, with as many rows each.

    Example: `MapRows`, which is used in the same way.
    """

    def __init__(self, rows: PyTree):
        lengths = sorted({len(leaf) for leaf in jax.tree.leaves(rows)})
        if len(lengths) > 1:
            raise RowError(f"all arrays must have as many rows, got {' and '.join(f'{n:,}' for n in lengths)}.")
        self.rows = rows
        self._files = [_file(leaf) for leaf in jax.tree.leaves(rows) if isinstance(leaf, np.memmap) and leaf.filename]

    def __len__(self) -> int:
        return int(jax.tree.leaves(self.rows)[0].shape[0])

    def take(self, indices: np.ndarray) -> PyTree:
        self._require_files()
        # In the order of the file, which is what disks like, and back.
        order = np.argsort(indices, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return jax.tree.map(lambda leaf: np.asarray(leaf[np.asarray(indices)[order]])[place], self.rows)

    def block(self, start: int, stop: int) -> PyTree:
        self._require_files()
        return jax.tree.map(lambda leaf: np.array(leaf[start:stop]), self.rows)

    def _require_files(self) -> None:
        """Refuse a file that has been cut: the system kills a process that reads what was behind its end."""
        for path, size in self._files:
            if _length(path) < size:
                raise RowError(f"{path} has become shorter since it was opened: open it again.")


def _length(path: str) -> float:
    """The bytes of a file, as NumPy sees them; infinite where it was deleted, which does not harm those who map it."""
    try:
        return np.memmap(path, np.uint8, "r").size
    except FileNotFoundError:
        return np.inf
    except ValueError:  # an empty file cannot be mapped
        return 0


def _file(leaf: np.memmap) -> tuple[str, int]:
    """The file of this array, and how many bytes it must have."""
    return str(leaf.filename), leaf.offset + leaf.nbytes


class MapRows(RowSource):
    """A data set with `len(data)` and `data[i]`, each row a pytree of arrays and numbers (map-style).

    **Arguments:**

    - `data`: the data set.

    >>> MapRows([{"t": 5}, {"t": 6}, {"t": 7}]).take(np.array([2, 0]))["t"].tolist()
    [7, 5]
    """

    def __init__(self, data: Any):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def take(self, indices: np.ndarray) -> PyTree:
        rows = [self.data[int(i)] for i in indices]
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)


class IterableRows(RowSource):
    """Batches that come as they come: a loader that yields pytrees of arrays. Rows have no numbers there (they are -1),
    so x cannot hold an entry for each, and a run cannot be resumed.

    **Arguments:**

    - `batches`: the loader. Where it ends it is started again, unless it is an iterator.

    >>> IterableRows([{"t": np.array([1, 2])}]).take(np.array([0, 0]))["t"].tolist()
    [1, 2]
    """

    def __init__(self, batches: Iterable[PyTree]):
        self.batches = batches
        self._now: Iterator[PyTree] = iter(batches)

    def __len__(self) -> int:
        raise RowError("an iterable has no length: give a data set with len and [i], or arrays.")

    def take(self, indices: np.ndarray) -> PyTree:
        """The next batch, whatever the numbers."""
        for _ in range(2):  # the second time from its beginning
            for batch in self._now:
                return jax.tree.map(np.asarray, batch)
            self._now = iter(self.batches)
        raise RowError("the loader ended early: it has no further batch. Give one that can be started again.")

    def describe(self) -> PyTree:
        raise RowError(
            "a run on an iterable cannot be saved: what it has yielded is gone. Give a data set with len and [i]."
        )
