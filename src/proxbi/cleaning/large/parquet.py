"""A table of many Parquet files: finding them, reading rows block by block, and writing files with columns added.

The unit of judging, writing and restarting is a piece: a file, or some row groups of a large one. The pieces of a file
are kept in a hidden directory next to its output until all are finished; then they are joined into one file.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from proxbi.cleaning.files.csv_file import first_line, require_different
from proxbi.cleaning.files.formats import Parquet, kind_of, said_of_parquet
from proxbi.cleaning.files.places import require_readable
from proxbi.cleaning.inputs.checks import by_index
from proxbi.cleaning.method.summary import Figures, Tally

BATCH = 1 << 16
"""Rows in memory at a time: a few megabytes, and enough that reading takes little time compared with judging."""
PIECE = 1 << 19
"""Rows judged and written at a time, unless a row group has more: roughly a minute of work."""
CHECKED = {"page_checksum_verification": True}
"""Flipped bits are detected in files with checksums, as these outputs are."""
MARK = b"proxbi"
"""The key in the footer of a finished file, which contains its run and its figures."""


class Part(NamedTuple):
    """One of the files, or a piece of it: some of its row groups."""

    path: Path
    name: str
    """Relative to the input directory; its output has the same name relative to the output directory."""
    first: int
    """The index of its first row in the table."""
    rows: int
    groups: range = range(0)
    """Its row groups."""
    start: int = 0
    """The index of its first row in its file."""
    number: int = 0
    """The number of this piece in its file,"""
    of: int = 1
    """and the number of pieces."""

    def __str__(self) -> str:
        return str(self.path)

    def where(self, row: int) -> str:
        """The name of a row in messages."""
        return f"{by_index(self.start + row)} of {self.path}"

    def whole(self, out: Path) -> Path:
        """The output of its file, in the output directory."""
        return out / self.name

    def pieces(self, out: Path) -> list[Path]:
        """The outputs of the pieces of its file."""
        whole = self.whole(out)
        folder = whole.with_name(f".{whole.name}.pieces")
        return [folder / f"{number}.parquet" for number in range(self.of)] if self.of > 1 else [whole]

    def mark(self) -> tuple[str, int, int, int]:
        """A mark that changes when the file does."""
        stat = self.path.stat()
        return self.name, self.rows, stat.st_size, stat.st_mtime_ns


def is_many(given: Path) -> bool:
    """Whether this means several files: a directory, or a pattern."""
    return given.is_dir() or (not given.exists() and any(sign in str(given) for sign in "*?["))


def find_parts(given: Path) -> list[Part]:
    """The files of a directory, those that a pattern matches, or the single file, sorted by name, large ones in pieces;
    all of them Parquet, with the same columns.
    """
    import pyarrow.parquet as pq

    folder, paths = _matching(given)
    if not paths:
        raise FileNotFoundError(f"{given} matches no Parquet file.")
    parts: list[Part] = []
    first, types = 0, dict[str, Any]()
    for path in paths:
        if kind_of(path) is not Parquet:
            raise ValueError(f"{path} is no Parquet file: tables that are not in memory are read from Parquet only.")
        require_readable(path)
        with said_of_parquet(str(path)), pq.ParquetFile(path) as file:
            sizes, schema = _group_sizes(file), file.schema_arrow
        require_different(str(path), schema.names)
        found = dict(zip(schema.names, schema.types, strict=True))
        types = types or found
        _require_alike(paths[0], types, path, found)
        parts.extend(_cut(Part(path, str(path.relative_to(folder)), first, sum(sizes)), sizes))
        first += sum(sizes)
    if first == 0:
        raise ValueError(f"{given} has no rows.")
    return parts


def _group_sizes(file: Any) -> list[int]:
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]


def _cut(whole: Part, sizes: list[int]) -> list[Part]:
    """A file in pieces of as many row groups as have `PIECE` rows, and at least one."""
    ends = np.cumsum([0, *sizes])
    cuts = [0]
    for number in range(1, len(sizes)):
        if ends[number + 1] - ends[cuts[-1]] > PIECE:
            cuts.append(number)
    groups = [range(a, b) for a, b in pairwise([*cuts, len(sizes)])]
    starts = [int(ends[each.start]) for each in groups]
    rows = [int(ends[each.stop]) - start for each, start in zip(groups, starts, strict=True)]
    return [
        whole._replace(first=whole.first + start, rows=count, groups=each, start=start, number=k, of=len(groups))
        for k, (each, start, count) in enumerate(zip(groups, starts, rows, strict=True))
    ]


def _matching(given: Path) -> tuple[Path, list[Path]]:
    """The directory of the files, and the files, as absolute paths: workers may run in another directory."""
    if given.is_dir():
        folder = given.absolute()
        found = [path for end in ("parquet", "pq") for path in folder.rglob(f"*.{end}") if not path.is_dir()]
        return folder, sorted(path for path in found if not _is_hidden(path, folder))
    if not is_many(given):
        return given.absolute().parent, [given.absolute()]
    parts = given.absolute().parts
    fixed = next(place for place, part in enumerate(parts) if any(sign in part for sign in "*?["))
    folder = Path(*parts[:fixed])
    return folder, sorted(path for path in folder.glob(str(Path(*parts[fixed:]))) if path.is_file())


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(name.startswith((".", "_")) for name in path.relative_to(folder).parts)


def _require_alike(first: Path, types: dict[str, Any], path: Path, found: dict[str, Any]) -> None:
    for name in types.keys() | found.keys():
        if name not in found or name not in types:
            has, lacks = (first, path) if name in types else (path, first)
            raise ValueError(f"{lacks} has no column {name!r}, which {has} has: all files must have the same columns.")
        if types[name] != found[name]:
            raise ValueError(f"Column {name!r} is {types[name]} in {first} and {found[name]} in {path}.")


def batches(part: Part, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
    """The rows of a piece as Arrow tables of at most `BATCH` rows, each with the index of its first row in the piece;
    one empty table for a piece without rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Memory-mapped: otherwise a whole row group is read into memory, however large it is.
    with said_of_parquet(str(part.path)), pq.ParquetFile(part.path, memory_map=True, **CHECKED) as file:
        first, wanted = 0, None if columns is None else list(columns)
        for batch in file.iter_batches(BATCH, row_groups=list(part.groups), columns=wanted):
            yield first, pa.Table.from_batches([batch], batch.schema)
            first += batch.num_rows
        if first == 0:
            yield 0, file.schema_arrow.empty_table().select(columns or file.schema_arrow.names)
        if first != part.rows:
            raise ValueError(f"{part.path} had {part.rows} rows there when the run began, and has {first} now.")


def take(places: Int[np.ndarray, " rows"], part: Part) -> Any:
    """The rows of a file with these indices in the table, as an Arrow table."""
    import pyarrow as pa

    ours = places[slice(*np.searchsorted(places, [part.first, part.first + part.rows]))] - part.first
    taken = []
    for first, table in batches(part):
        some = ours[slice(*np.searchsorted(ours, [first, first + table.num_rows]))] - first
        taken.append(table.take(pa.array(some)))
    return pa.concat_tables(taken)


def write_blocks(path: Path, blocks: Iterator[tuple[Any, Figures | None]], digest: str) -> Figures:
    """Write Arrow tables as one file, with the sum of their figures in its footer."""
    import pyarrow.parquet as pq

    writer, parts = None, []
    for table, figures in blocks:
        writer = writer or pq.ParquetWriter(path, table.schema, write_page_checksum=True)
        if table.num_rows:
            writer.write_table(table)
        parts.extend([] if figures is None else [figures])
    assert writer is not None, "a file has at least one block, which may be empty"
    total = Figures.sum(parts)
    writer.add_key_value_metadata({MARK: json.dumps([digest, _as_lists(total)])})
    writer.close()
    return total


def join(path: Path, pieces: Sequence[Path], digest: str) -> Figures:
    """Write pieces as one file, a row group at a time."""
    import pyarrow.parquet as pq

    def unmarked(table: Any) -> Any:
        return table.replace_schema_metadata({k: v for k, v in (table.schema.metadata or {}).items() if k != MARK})

    def blocks() -> Iterator[tuple[Any, Figures | None]]:
        for piece in pieces:
            figures = finished(piece, digest)
            if figures is None:
                raise OSError(f"{piece} is gone or was changed: give the same command again.")
            with pq.ParquetFile(piece, **CHECKED) as file:
                yield unmarked(file.schema_arrow.empty_table()), figures
                for group in range(file.num_row_groups):
                    yield unmarked(_of_piece(piece, file, group)), None

    return write_blocks(path, blocks(), digest)


def _of_piece(path: Path, file: Any, group: int) -> Any:
    """A row group. A damaged piece is removed: the next run writes it again."""
    import pyarrow as pa

    try:
        return file.read_row_group(group)
    except (pa.ArrowException, OSError) as error:
        path.unlink(missing_ok=True)
        raise OSError(
            f"{path} is damaged, and was removed ({first_line(error)}): give the same command again."
        ) from error


def finished(path: Path, digest: str) -> Figures | None:
    """The figures of a file that an earlier run with this digest wrote; None if there is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            found = json.loads((file.metadata.metadata or {}).get(MARK, b"null"))
    except (OSError, pa.ArrowException):
        return None
    return None if found is None or found[0] != digest else _from_lists(found[1])


def beside(out: Path, parts: Sequence[Part]) -> list[Path]:
    """Parquet files in the output directory that are not outputs: probably of an earlier run on other files."""
    ours = {part.whole(out) for part in parts}
    return sorted(path for path in out.rglob("*.parquet") if path not in ours and not _is_hidden(path, out))


def digest_of(what: Any) -> str:
    """The SHA-256 of anything that JSON can write."""
    return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()


def _as_lists(figures: Figures) -> list[Any]:
    tallies = [[part.tolist() for part in tally] for tally in figures[:2]]
    return [*tallies, figures.trusted.tolist(), figures.decided]


def _from_lists(lists: list[Any]) -> Figures:
    by_class, by_group = (Tally(*(np.array(part) for part in tally)) for tally in lists[:2])
    return Figures(by_class, by_group, np.array(lists[2]), lists[3])
