"""CSV, Parquet and npz files of rows: read, and written again with columns added.

Nothing of the input is lost on the way: a CSV file is copied as text, so that `007` and `1.50` stay what they are, a
Parquet file keeps its types, an npz file its arrays.
"""

import contextlib
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from proxbi.cleaning.files.csv_file import (
    Columns,
    Csv,
    delimiter_for,
    first_line,
    open_to_write,
    require_different,
)
from proxbi.cleaning.files.places import called, ending, is_stream, require_readable, spooled
from proxbi.cleaning.inputs.checks import Where, by_index
from proxbi.cleaning.inputs.columns import stacked

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
    """A Parquet file, or rows of several as one."""

    def __init__(self, path: Path, name: str | None = None, table: Any = None, where: Where = by_index) -> None:
        """`table` has the rows, in the types of Arrow, where they are not to be read."""
        import pyarrow.parquet as pq

        self.path, self.name, self.where = path, name or str(path), where
        with said_of_parquet(self.name):
            self.table = pq.read_table(path) if table is None else table
        self.names = self.table.column_names
        require_different(self.name, self.names)
        described = self.table.schema.pandas_metadata or {}
        self.index = [name for name in described.get("index_columns", []) if isinstance(name, str)]
        """Columns that hold the index of a data frame."""
        self.frame = self.table.to_pandas(ignore_metadata=True)


@contextlib.contextmanager
def said_of_parquet(name: str) -> Iterator[None]:
    """The errors of Arrow, with the name of the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # it is the system that could not read it
            raise
        raise ValueError(f"{name} is not a Parquet file that can be read: {first_line(error)}.") from error


class Npz:
    """An npz file: X and y, an entry for each row, and what else there is."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path, self.name = path, name or str(path)
        arrays = load_numpy(path, self.name)
        if isinstance(arrays, np.ndarray):
            raise ValueError(f"{self.name} has a single array, as npy files do: save X and y with np.savez.")
        self.arrays = arrays
        self.names = list(self.arrays)

    where = staticmethod(by_index)

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a table: arrays of more than one dimension as one column for each number."""
        import pandas as pd

        by_row, columns = self.by_row(), dict[str, np.ndarray]()
        taken = {name for name, values in by_row.items() if values.ndim == 1}
        for name, values in by_row.items():
            flat, stem = values.reshape(len(values), -1), name
            while any(f"{stem}_{i}" in taken for i in range(flat.shape[1])):
                stem += "_"
            parts = {f"{stem}_{i}": flat[:, i] for i in range(flat.shape[1])}
            columns |= {name: decoded(values)} if values.ndim == 1 else parts
            taken |= set(columns)
        return pd.DataFrame(columns)

    def by_row(self) -> dict[str, np.ndarray]:
        """The arrays with an entry for each row."""
        rows = len(self.arrays["X"])
        return {name: a for name, a in self.arrays.items() if name not in APART and a.ndim and len(a) == rows}


Source = Csv | Parquet | Npz
KINDS: dict[str, type[Csv] | type[Parquet] | type[Npz]] = {
    ".csv": Csv,
    ".tsv": Csv,
    ".csv.gz": Csv,
    ".tsv.gz": Csv,
    ".parquet": Parquet,
    ".pq": Parquet,
    ".npz": Npz,
}


def kind_of(path: Path) -> type[Csv] | type[Parquet] | type[Npz]:
    """What a file is, by its extension; a stream without one is CSV."""
    if ending(path) not in KINDS:
        raise ValueError(f"{path} has an unknown extension; known are {', '.join(KINDS)}, and - for a pipe.")
    return KINDS[ending(path)]


def read(path: Path, text: Sequence[str] = ()) -> Source:
    """The file or stream; the columns `text` of a CSV are taken as text, or as integers where that loses nothing."""
    kind_of(path)
    require_readable(path)
    if not is_stream(path):
        return _read(path, text, str(path))
    folder = Path(tempfile.mkdtemp(prefix="proxbi-"))
    try:
        source = _read(spooled(path, folder), text, called(path, "input"))
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)  # a CSV is read again when it is copied
    return source


def _read(path: Path, text: Sequence[str], name: str) -> Source:
    kind = kind_of(path)
    return Csv(path, text, name) if kind is Csv else Parquet(path, name) if kind is Parquet else Npz(path, name)


def load_numpy(path: Path, name: str) -> np.ndarray | dict[str, np.ndarray]:
    """The arrays of an npz file, or the one of an npy file; by what is in it, not by its extension."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found as file:
            return {name: file[name] for name in file.files}
    except MemoryError as error:
        raise ValueError(f"{name} has arrays that do not fit into memory: {first_line(error)}.") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, TypeError, EOFError, NotImplementedError) as error:
        raise ValueError(f"{name} is not an npz file of plain arrays: {first_line(error)}.") from error


def require_room(source: Source, path: Path) -> None:
    """Refuse columns that the kind of file at `path` cannot hold, before any work is done."""
    if kind_of(path) is Npz and not isinstance(source, Npz):
        for name in source.frame:
            if source.frame[name].dtype == object:
                _for_npz(str(name), source.frame[name])
    elif kind_of(path) is not Npz and isinstance(source, Npz):
        odd = [name for name, values in source.by_row().items() if values.dtype.kind not in "biufSUMm"]
        if odd:
            kind = source.arrays[odd[0]].dtype
            raise ValueError(f"{odd[0]} of {source.name} is of the type {kind}, which only an npz file holds.")


def write(source: Source, changes: Changes, path: Path) -> None:
    """Write the rows of `source` with the changes, as what the extension of `path` says."""
    kind = kind_of(path)
    if kind is Csv and isinstance(source, Csv):
        source.copy(path, *changes)
    elif kind is Csv:
        rows = source.frame.assign(**changes.columns())[changes.kept]
        with open_to_write(path) as file:
            rows.to_csv(file, sep=delimiter_for(path), index=False, lineterminator="\n")
    elif kind is Parquet:
        _write_parquet(source, changes, path)
    else:
        _write_npz(source, changes, path)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write an npz file; unlike with `np.savez`, arrays may have any names, `file` too."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)


def decoded(values: np.ndarray) -> np.ndarray:
    """Bytes as text."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _write_parquet(source: Source, changes: Changes, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = source.table if isinstance(source, Parquet) else pa.Table.from_pandas(source.frame, preserve_index=False)
    pq.write_table(changed(table, changes), path)


def changed(table: Any, changes: Changes) -> Any:
    """The Arrow table with the changes."""
    import pyarrow as pa

    for name, values in changes.replaced.items():
        place = table.column_names.index(name)
        field = table.schema.field(place)
        table = table.set_column(place, field, _cast(pa.array(values, from_pandas=True), field.type))
    for name, values in changes.added.items():
        made = pa.array(values, from_pandas=True)
        # Of no rows there is no telling that they would be text.
        table = table.append_column(name, made.cast(pa.string()) if pa.types.is_null(made.type) else made)
    return table.filter(pa.array(changes.kept))


def _cast(values: Any, kind: Any) -> Any:
    """An Arrow array as this type: a column of categories stays one."""
    import pyarrow as pa

    return values.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else values.cast(kind)


def _write_npz(source: Source, changes: Changes, path: Path) -> None:
    if isinstance(source, Npz):
        by_row, others = source.by_row(), source.arrays
    else:
        by_row, others = {str(name): _for_npz(str(name), source.frame[name]) for name in source.frame}, {}
    news = {name: _for_npz(name, values) for name, values in changes.columns().items()}
    for name in changes.replaced:
        if by_row[name].dtype.kind == "S":
            news[name] = np.char.encode(news[name], "utf-8")
    write_arrays(path, others | {name: values[changes.kept] for name, values in (by_row | news).items()})


def _for_npz(name: str, values: Any) -> np.ndarray:
    """An array that npz can hold without pickling: of numbers, dates, text or vectors of numbers; a missing text is
    empty.
    """
    import pandas as pd

    array = np.asarray(values)
    if array.dtype.kind != "O":
        return array
    if any(isinstance(value, dict | set) for value in array):
        raise ValueError(f"Column {name!r} has structures, which an npz file cannot hold: write Parquet.")
    if any(isinstance(value, list | tuple | np.ndarray) for value in array):
        return stacked(name, pd.Series(values))
    return np.where(pd.isna(array), "", array).astype(str)
