r"""Rows on the host as blocks of compiled programs: sums over all rows in the memory of a few blocks.

Block k of b rows out of n begins at min(k b, n - b): the last one overlaps the one before, and the rows that were seen
already do not count. So all blocks have one shape, and slices of vectors with an entry for each row need no padding.

A compiled program asks for block k (`jax.pure_callback`); while it works on it, a thread reads block k + 1. Rows come
in the type they have on disk, and are cast inside of the program: a block of uint8 is an eighth of one of float64.

Sums of thousands of blocks in single precision lose digits. They are compensated (Kahan): with s the sum and e what was
lost so far,  t = a - e,  s' = s + t,  e' = (s' - s) - t.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from proxbi.rows._batches import checked_rows
from proxbi.rows._sources import RowError, RowSource

T = TypeVar("T")
U = TypeVar("U")
BYTES = 1 << 22
"""Of a block: some of them fit into a cache, and asking for one takes a small part of the time it takes to use it."""

MOST = 2**31 - 1
"""Rows: JAX counts in 32 bits by default."""


_HEARD: list[list[BaseException]] = []
"""For each `in_its_words` that is entered, what sources raised when a compiled program asked them for rows."""


@contextmanager
def in_its_words() -> Iterator[None]:
    """What a source raises, as it is, where JAX would wrap it in the traceback of a compiled program."""
    heard: list[BaseException] = []
    _HEARD.append(heard)
    try:
        yield
    except Exception as error:
        if not heard or error is heard[0]:
            raise
        raise heard[0] from None
    finally:
        _HEARD[:] = [each for each in _HEARD if each is not heard]


def heard_of_it() -> bool:
    """Whether a source has failed, and `in_its_words` is about to say so."""
    return any(_HEARD)


class Prefetched(RowSource):
    """Blocks of a source, of which the next one is read while one is used."""

    def __init__(self, source: RowSource, block: int | None = None):
        """`block` rows at most; by default as many as make `BYTES`."""
        self.source, self._count = source, len(source)
        if not 0 < self._count <= MOST:
            many = f"{self._count:,} rows, more than the {MOST:,} that 32 bits count"
            raise RowError(f"there are {many if self._count else 'no rows'}.")
        first = source.block(0, 1)
        _require_numbers(first)
        each = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(first))
        most = block or max(1, BYTES // max(1, each))
        self.blocks = -(-self._count // most)
        self.size = -(-self._count // self.blocks)
        self.shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.size, *np.shape(leaf)[1:]), _known(np.asarray(leaf).dtype)), first
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="proxbi-rows")
        self._ahead: dict[int, Future[PyTree]] = {}
        self.classes: int | None = None
        """As many as integers are known to be below."""

    def __len__(self) -> int:
        return self._count

    def take(self, indices: np.ndarray) -> PyTree:
        return self.source.take(indices)

    def block(self, start: int, stop: int) -> PyTree:
        return self.source.block(start, stop)

    def describe(self) -> PyTree:
        return self.source.describe()

    def number(self, k: Any) -> PyTree:
        """Block k; the next one is read meanwhile, after the last one the first: sums are taken again and again."""
        now = int(k)
        future = self._ahead.pop(now, None) or self._thread.submit(self.read, now)
        try:
            found = future.result()
        except BaseException as error:  # Ctrl-C too, which may come while a compiled program asks for rows
            for heard in _HEARD:
                heard.append(error)
            raise
        after = (now + 1) % self.blocks
        self._ahead = {after: self._ahead.get(after) or self._thread.submit(self.read, after)}
        return found

    def read(self, k: int) -> PyTree:
        """Block k, without the next one."""
        start = self.start(k)
        rows = self.source.block(start, start + self.size)
        for leaf, like in zip(jax.tree.leaves(rows), jax.tree.leaves(self.shapes), strict=True):
            if np.shape(leaf) != like.shape:
                stop = start + self.size
                raise RowError(f"rows {start} to {stop - 1} must have the shape {like.shape}, got {np.shape(leaf)}.")
        return jax.tree.map(_narrowed, rows, self.shapes)

    def start(self, k: Any) -> Any:
        """The first row of block k."""
        return min(k * self.size, self._count - self.size)


def _known(dtype: Any) -> Any:
    """What JAX makes of this type: without its 64 bits, half of them."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _require_numbers(rows: PyTree) -> None:
    for leaf in jax.tree.leaves(rows):
        dtype = np.asarray(leaf).dtype
        if dtype.kind not in "biuf" and not jnp.issubdtype(dtype, jnp.floating):  # as bfloat16 is
            raise RowError(f"rows must be real numbers, got the type {dtype}.")


def _narrowed(values: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
    """The values in a type that JAX knows. Integers that it cannot hold are refused; other numbers become infinite.

    So are numbers that are no integers where the first rows have integers, as of a column with gaps further down: they
    would be cut off.
    """
    array = np.asarray(values)
    if not np.can_cast(array.dtype, like.dtype, "same_kind") and {array.dtype.kind, like.dtype.kind} - set("iu"):
        raise RowError(f"rows have the type {array.dtype}, and the first row {like.dtype}: all must have one type.")
    if array.dtype.kind in "iu" and array.dtype != like.dtype:
        ends = np.iinfo(like.dtype)
        for value in (array.min(initial=0), array.max(initial=0)):
            if not ends.min <= value <= ends.max:
                raise RowError(f"rows have the integer {value:,}, which {like.dtype} cannot hold.")
    with np.errstate(over="ignore"):
        return array.astype(like.dtype, copy=False)


class HostBlock(NamedTuple):
    """A block inside of a compiled program."""

    rows: PyTree
    """In the types they have on disk."""
    start: Int[Array, ""]
    counts: Float[Array, " block"]
    """1, or 0 for rows that the block before had too."""

    def of(self, vector: Array) -> Array:
        """The entries of these rows in a vector with one for each row."""
        return jax.lax.dynamic_slice_in_dim(vector, self.start, len(self.counts))

    def put(self, vector: Array, entries: Array) -> Array:
        """The vector with these entries for the rows that count."""
        counted = self.counts.reshape(-1, *[1] * (entries.ndim - 1)) > 0
        return jax.lax.dynamic_update_slice_in_dim(vector, jnp.where(counted, entries, self.of(vector)), self.start, 0)


class HostRows(eqx.Module):
    """Rows on the host, for compiled programs: a pytree without leaves.

    >>> class Squares(RowSource):
    ...     def __len__(self): return 10
    ...     def take(self, indices): return indices.astype(np.uint8) ** 2
    >>> rows = HostRows(Prefetched(Squares(), block=4))
    >>> print(jax.jit(lambda: rows.sum(lambda block: jnp.sum(block.counts * block.rows.astype(jnp.float32))))())
    285.0
    """

    source: Prefetched = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.source)

    def block(self, k: Int[Array, ""]) -> HostBlock:
        """Block k, asked for by a compiled program."""
        rows = jax.pure_callback(self.source.number, self.source.shapes, k)
        size = self.source.size
        start = jnp.minimum(k * size, len(self) - size)
        return HostBlock(rows, start, (start + jnp.arange(size, dtype=k.dtype) >= k * size).astype(jnp.float32))

    def sum(self, function: Callable[[HostBlock], T]) -> T:
        """The compensated sum of a function of the blocks."""
        return self.both(lambda block: (function(block), None), None)[0]

    def each(self, function: Callable[[HostBlock], T], like: T) -> T:
        """Arrays with an entry for each row, as `like` has, by a function of the blocks."""
        return self.both(lambda block: (None, function(block)), like)[1]

    def both(self, function: Callable[[HostBlock], tuple[T, U]], like: U) -> tuple[T, U]:
        """The sum of the first, and the arrays of the second, in one pass."""
        shapes = jax.eval_shape(lambda: function(self.block(jnp.int32(0)))[0])
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def body(k: Array, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            total, lost, out = carry
            block = self.block(k)
            found, entries = function(block)
            term = jax.tree.map(jnp.subtract, found, lost)
            after = jax.tree.map(jnp.add, total, term)
            lost = jax.tree.map(lambda a, b, c: (a - b) - c, after, total, term)
            return after, lost, jax.tree.map(block.put, out, entries)

        start = (nothing, nothing, jax.tree.map(jnp.zeros_like, like))
        total, _, out = jax.lax.fori_loop(jnp.int32(0), jnp.int32(self.source.blocks), body, start)
        return total, out


def require_usable(name: str, rows: HostRows, classes: int | None) -> None:
    """Refuse NaN, and integers outside of 0..classes-1 where rows have one each, by the numbers of the rows; all of
    them are read once.
    """
    source = rows.source
    with in_its_words():
        usable = bool(_usable(rows, classes))
    if usable:
        source.classes = classes
        return
    for k in range(source.blocks):
        start = source.start(k)
        checked_rows(name, source.read(k), np.arange(start, start + source.size), classes)


@partial(jax.jit, static_argnums=1)
def _usable(rows: HostRows, classes: int | None) -> Array:
    def bad(block: HostBlock) -> Array:
        wrong = [_wrong(leaf, classes) for leaf in jax.tree.leaves(block.rows)]
        return jnp.where(jnp.any(jnp.stack(wrong)), 1.0, 0.0)

    return rows.sum(bad) == 0


def _wrong(leaf: Array, classes: int | None) -> Array:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return ~jnp.all(jnp.isfinite(leaf.astype(jnp.float32) if leaf.dtype.itemsize < _SINGLE else leaf))
    if classes is None or leaf.ndim != 1 or leaf.dtype == jnp.bool_:
        return jnp.zeros((), bool)
    last = min(classes - 1, int(jnp.iinfo(leaf.dtype).max))
    return jnp.any((leaf < 0) | (leaf > jnp.asarray(last, leaf.dtype)))


_SINGLE = 4  # bytes
