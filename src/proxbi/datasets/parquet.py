"""Rows of Parquet files, for solvers: read by row groups, a few of which are in memory."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from proxbi.rows import RowError, RowSource

KEPT = 2
"""Row groups in memory: blocks cross from one into the next."""


class _Group(NamedTuple):
    path: str
    number: int
    first: int
    """Its first row, among those of all files."""
    rows: int
    mark: tuple[int, int]
    """Of its file, when that was opened."""


class ParquetRows(RowSource):
    """The rows of Parquet files: blocks are pairs (features, targets).

    **Arguments:**

    - `path`: a file, a directory of `.parquet` files, or a pattern; several are one table in the order of their names.
    - `target`: the column that has the targets.
    - `features`: the columns that are features, all numeric; by default all others.
    - `dtype`: of the features; by default the one that holds all columns.

    A row group is read as a whole, and two are kept: files whose groups have 100,000 rows or so need little memory.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pa.table({"a": np.arange(5, dtype=np.uint8), "b": np.ones(5, np.uint8), "t": [0, 1, 0, 1, 1]})
    ...     pq.write_table(table, f"{folder}/rows.parquet", row_group_size=2)
    ...     rows = ParquetRows(folder, "t")
    ...     print(len(rows), *rows.block(1, 4))
    5 [[1 1]
     [2 1]
     [3 1]] [1 0 1]
    """

    def __init__(
        self, path: str | PathLike[str], target: str, features: Sequence[str] | None = None, dtype: Any = None
    ):
        """Nothing but the footers of the files is read."""
        files = _files(fspath(path))
        self._groups, names = _groups(files, None if features is None else [target, *features])
        self.target = target
        self.features = [name for name in names if name != target] if features is None else list(features)
        for name in (target, *self.features):
            if name not in names:
                raise RowError(f"{files[0]} has no column {name!r}; it has {', '.join(map(repr, names[:8]))}.")
        self.dtype = dtype
        self._firsts = np.array([group.first for group in self._groups])
        self._kept: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()

    def __len__(self) -> int:
        last = self._groups[-1]
        return last.first + last.rows

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wanted = np.asarray(indices, np.int64)
        order = np.argsort(wanted, kind="stable")
        parts = self._parts(wanted[order])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return _joined([(x[rows], t[rows]) for (x, t), rows in parts], place)

    def block(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        first, last = (int(np.searchsorted(self._firsts, row, side="right")) - 1 for row in (start, stop - 1))
        cuts = []
        for number in range(first, last + 1):
            x, t = self._group(number)
            own = slice(max(0, start - self._groups[number].first), stop - self._groups[number].first)
            cuts.append((x[own], t[own]))
        return _joined(cuts)

    def _parts(self, rows: Int[np.ndarray, " rows"]) -> list[tuple[tuple[np.ndarray, np.ndarray], np.ndarray]]:
        """The groups that have these rows, which are in order, and the rows in each."""
        numbers = np.searchsorted(self._firsts, rows, side="right") - 1
        return [(self._group(int(n)), rows[numbers == n] - self._firsts[n]) for n in np.unique(numbers)]

    def _group(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if number not in self._kept:
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            self._kept[number] = self._read(self._groups[number])
        self._kept.move_to_end(number)
        return self._kept[number]

    def _read(self, group: _Group) -> tuple[np.ndarray, np.ndarray]:
        import pyarrow.parquet as pq

        with _said_of(group.path), pq.ParquetFile(group.path, page_checksum_verification=True) as file:
            table = file.read_row_group(group.number, columns=[*self.features, self.target])
        if table.num_rows != group.rows:
            raise RowError(
                f"{group.path} had {group.rows} rows in row group {group.number}, and has {table.num_rows} now."
            )
        if _mark(group.path) != group.mark:
            raise RowError(f"{group.path} has changed since it was opened: open it again.")
        columns = [_numbers(group.path, name, table.column(name)) for name in self.features]
        dtype = np.result_type(*columns) if self.dtype is None else np.dtype(self.dtype)
        made = np.empty((group.rows, len(columns)), dtype)
        for place, values in enumerate(columns):
            made[:, place] = values
        return made, _numbers(group.path, self.target, table.column(self.target))


def _mark(path: str) -> tuple[int, int]:
    """What changes when a file does: its size and the time of its last change."""
    with _said_of(path):
        found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


def _files(path: str) -> list[str]:
    found = (
        sorted(map(str, Path(path).rglob("*.parquet"))) if Path(path).is_dir() else sorted(glob(path, recursive=True))
    )
    if files := [each for each in found if not Path(each).is_dir()]:
        return files
    raise RowError(f"{path} matches no Parquet file.")


@contextmanager
def _said_of(path: str) -> Iterator[None]:
    """The errors of Arrow, with the name of the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise RowError(f"{path} is not a Parquet file that can be read: {str(error).strip()}") from error


def _groups(files: list[str], used: list[str] | None) -> tuple[list[_Group], list[str]]:
    """All row groups that have rows, and the names of the columns, which must be the same in all files; so must the
    types of those that are `used`.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("rows of Parquet files need pyarrow: pip install 'proxbi[clean]'.") from error
    groups: list[_Group] = []
    first = 0
    schema: Any = None
    for path in files:
        mark = _mark(path)
        with _said_of(path), pq.ParquetFile(path) as file:
            footer, own = file.metadata, file.schema_arrow
        schema = own if schema is None else schema
        _require_alike(files[0], schema, path, own, used)
        for number in range(footer.num_row_groups):
            rows = footer.row_group(number).num_rows
            groups += [_Group(path, number, first, rows, mark)] if rows else []
            first += rows
    if not groups:
        raise RowError(f"{files[0]} has no rows.")
    return groups, list(schema.names)


def _require_alike(first: str, schema: Any, path: str, own: Any, used: list[str] | None) -> None:
    if own.names != schema.names:
        raise RowError(f"{path} has other columns than {first}.")
    for name in own.names if used is None else set(used) & set(own.names):
        if own.names.count(name) > 1:
            raise RowError(f"{path} has two columns called {name!r}.")
        if own.field(name).type != schema.field(name).type:
            raise RowError(
                f"column {name!r} is {schema.field(name).type} in {first} and {own.field(name).type} in {path}."
            )


def _numbers(path: str, name: str, column: Any) -> np.ndarray:
    values = column.to_numpy()
    if column.null_count or values.dtype.kind not in "biuf":
        what = f"{column.null_count} missing values" if column.null_count else f"the type {column.type}"
        raise RowError(f"column {name!r} of {path} must have numbers only, and has {what}.")
    return values


def _joined(parts: list[tuple[np.ndarray, np.ndarray]], order: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    features, targets = zip(*parts, strict=True)
    return np.concatenate(features)[order], np.concatenate(targets)[order]
