"""CSV, Parquet and npz files of rows: read, and written again with columns added, whole or not at all.

Nothing of the input is lost on the way: a CSV file is copied as text, so that `007` and `1.50` stay what they are, a
Parquet file keeps its types, an npz file its arrays.
"""

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from proxbi.cleaning.files.csv_file import Columns, Csv, delimiter_for, first_line, require_different

if TYPE_CHECKING:
    import pandas as pd

APART = ("X_val", "y_val")
"""The arrays of an npz file that are not about its rows."""


class Changes(NamedTuple):
    """What is done to the rows on writing."""

    added: Columns
    replaced: Columns
    """Columns to write in place of those of the same name."""
    kept: Bool[np.ndarray, " rows"]
    """The rows to write."""

    def columns(self) -> Columns:
        return self.replaced | self.added


class Parquet:
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self.table = pq.read_table(path)
        except pa.ArrowException as error:
            raise ValueError(f"{path} is not a Parquet file that can be read: {first_line(error)}.") from error
        self.path = path
        self.names = self.table.column_names
        require_different(path, self.names)
        described = self.table.schema.pandas_metadata or {}
        self.index = [name for name in described.get("index_columns", []) if isinstance(name, str)]
        """Columns that hold the index of a data frame."""
        self.frame = self.table.to_pandas(ignore_metadata=True)


class Npz:
    """An npz file: X and y, an entry for each row, and what else there is."""

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                self.arrays: dict[str, np.ndarray] = {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise ValueError(f"{path} is not an npz file of plain arrays: {first_line(error)}.") from error
        self.path = path
        self.names = list(self.arrays)

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a table: arrays of more than one dimension as one column for each number."""
        import pandas as pd

        columns: dict[str, np.ndarray] = {}
        for name, values in self.by_row().items():
            flat = values.reshape(len(values), -1)
            columns |= {name: values} if values.ndim == 1 else {f"{name}_{i}": flat[:, i] for i in range(flat.shape[1])}
        return pd.DataFrame(columns)

    def by_row(self) -> dict[str, np.ndarray]:
        """The arrays with an entry for each row."""
        rows = len(self.arrays["X"])
        return {name: a for name, a in self.arrays.items() if name not in APART and a.ndim and len(a) == rows}


Source = Csv | Parquet | Npz
KINDS: dict[str, type[Csv] | type[Parquet] | type[Npz]] = {
    ".csv": Csv,
    ".tsv": Csv,
    ".parquet": Parquet,
    ".pq": Parquet,
    ".npz": Npz,
}


def kind_of(path: Path) -> type[Csv] | type[Parquet] | type[Npz]:
    """What a file is, by its extension."""
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"{path} has an unknown extension; known are {', '.join(KINDS)}.")
    return KINDS[path.suffix.lower()]


def require_readable(path: Path) -> None:
    """Refuse a path that cannot be an input."""
    kind_of(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} may not be read.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")


def read(path: Path, text: Sequence[str] = ()) -> Source:
    """The file; the columns `text` of a CSV are taken as text, or as integers where that loses nothing."""
    require_readable(path)
    kind = kind_of(path)
    return Csv(path, text) if kind is Csv else Parquet(path) if kind is Parquet else Npz(path)


def write(source: Source, changes: Changes, path: Path) -> None:
    """Write the rows of `source` with the changes, as what the extension of `path` says."""
    kind = kind_of(path)
    if kind is Csv and isinstance(source, Csv):
        source.copy(path, *changes)
    elif kind is Csv:
        rows = source.frame.assign(**changes.columns())[changes.kept]
        rows.to_csv(path, sep=delimiter_for(path), index=False, lineterminator="\n")
    elif kind is Parquet:
        _write_parquet(source, changes, path)
    else:
        _write_npz(source, changes, path)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write an npz file."""
    with path.open("wb") as file:  # given a path, NumPy would add .npz to other endings
        np.savez(file, **arrays)


@contextmanager
def written_whole(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Other paths to write to, in the same folders; the files get their names when all are there, or are removed."""
    drafts = [path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}") for path in paths]
    try:
        yield drafts
        lacking = [path for draft, path in zip(drafts, paths, strict=True) if not draft.exists()]
        if lacking:
            raise FileNotFoundError(f"{lacking[0]} was not written.")
        for draft, path in zip(drafts, paths, strict=True):
            draft.replace(path)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


def _write_parquet(source: Source, changes: Changes, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = source.table if isinstance(source, Parquet) else pa.Table.from_pandas(source.frame, preserve_index=False)
    for name, values in changes.columns().items():
        column = pa.array(values, from_pandas=True)
        place = table.column_names.index(name) if name in table.column_names else None
        table = table.append_column(name, column) if place is None else table.set_column(place, name, column)
    pq.write_table(table.filter(pa.array(changes.kept)), path)


def _write_npz(source: Source, changes: Changes, path: Path) -> None:
    if isinstance(source, Npz):
        by_row, others = source.by_row(), source.arrays
    else:
        by_row, others = {name: _plain(source.frame[name]) for name in source.frame}, {}
    by_row |= {name: _plain(values) for name, values in changes.columns().items()}
    write_arrays(path, others | {name: values[changes.kept] for name, values in by_row.items()})


def _plain(values: Any) -> np.ndarray:
    """An array that npz can hold without pickling: of numbers, dates or text."""
    array = np.asarray(values)
    return array.astype(str) if array.dtype.kind == "O" else array
