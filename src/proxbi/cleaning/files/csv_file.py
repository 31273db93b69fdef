"""CSV files: values with types for the cleaner, text for the copy."""

import csv
import gzip
import io
import re
import sys
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from jaxtyping import Bool

from proxbi.cleaning.files.places import ending

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 100_000
"""Rows whose new values are made Python objects at a time."""
DELIMITERS = ",;\t|"
GZIP = b"\x1f\x8b"
INTEGER = r"0|-?[1-9]\d{0,17}"
"""As Python would write one of 64 bits."""
MISSING = (
    "",
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "<NA>",
    "NaN",
    "nan",
    "-NaN",
    "-nan",
    "NULL",
    "null",
    "None",
    "#NA",
    "1.#QNAN",
)
"""What stands for a missing number. In a column of text all but the empty cell are text: NA may be North America."""
DECIMAL_COMMA = r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)?(?:,\d+)?(?:[eE][+-]?\d+)?"

Columns = dict[str, np.ndarray]


class Csv:
    """A CSV file in UTF-8, gzipped or not, with a line of names; the delimiter is the one that this line has most of.

    `frame` has the values, with types; of the columns `text` as text, or as integers where that loses nothing. Numbers
    may have decimal commas unless cells are separated by commas.
    """

    def __init__(self, path: Path, text: Sequence[str] = (), name: str | None = None) -> None:
        self.path, self.name = path, name or str(path)
        self.delimiter = self._delimiter()
        self.names = [] if (head := next(self._records(), None)) is None else head[1]
        require_different(self.name, self.names)
        self.decimal = "."
        texts = [name for name in text if name in self.names]
        self.frame = self._read(dict.fromkeys(texts, "str"))
        for column in self.frame.columns:
            if column in texts:
                self.frame[column] = _integers_if_lossless(self.frame[column])
            elif _is_text(self.frame[column]):
                self.frame[column] = self._typed(self.frame[column])

    def where(self, row: int) -> str:
        """Which row is meant, for people who look into a spreadsheet."""
        return f"line {next(islice(self.lines(), row, None))} (as a spreadsheet counts)"

    def lines(self) -> Iterator[int]:
        """The line of each row in a spreadsheet, where blank lines count and line breaks within cells do not."""
        return (line for line, _ in islice(self._records(), 1, None))

    def copy(self, path: Path, added: Columns, replaced: Columns, kept: Bool[np.ndarray, " rows"]) -> None:
        """Write the text of the rows `kept` to `path`, with some columns replaced and some added."""
        places = [self.names.index(name) for name in replaced]
        width = len(self.names)
        as_here = is_tsv(path) == is_tsv(Path(self.name))
        with open_to_write(path) as file:
            delimiter = self.delimiter if as_here else delimiter_for(path)
            out = csv.writer(file, delimiter=delimiter, lineterminator="\n")
            out.writerow([*self.names, *added])
            news, others = (_by_row(columns, len(kept), self.decimal) for columns in (added, replaced))
            cells = (row for _, row in islice(self._records(), 1, None))
            for row, new, other, keep in zip(cells, news, others, kept.tolist(), strict=True):
                for place, value in zip(places, other, strict=True):
                    row[place] = value
                if keep:
                    out.writerow([*row, *[""] * (width - len(row)), *new])

    def _delimiter(self) -> str:
        with said_plainly(self.name), open_text(self.path) as file:
            lines = (line for line in file if line.strip())
            first, second = next(lines, ""), next(lines, "")
        if re.fullmatch(r'"?sep=.?"?\s*', first):
            raise ValueError(f"{self.name} begins with {first.strip()!r}, a line for Excel only: remove the line.")
        if first.startswith("#") and _most(first) < _most(second):
            raise ValueError(
                f"{self.name} begins with a comment, {first.strip()[:40]!r}: the first line must have names."
            )
        return max(DELIMITERS, key=first.count)

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The names and then the rows as text, with their lines; blank lines are skipped, as pandas does."""
        limit = csv.field_size_limit(sys.maxsize)
        try:
            with said_plainly(self.name), open_text(self.path) as file:
                records = enumerate(csv.reader(file, delimiter=self.delimiter), 1)
                yield from ((line, row) for line, row in records if len(row) > 1 or "".join(row).strip())
        finally:
            csv.field_size_limit(limit)

    def _read(self, types: dict[str, str]) -> "pd.DataFrame":
        import pandas as pd

        with said_plainly(self.name), warnings.catch_warnings(), open_text(self.path) as file:
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                file,
                sep=self.delimiter,
                names=self.names,
                header=0,
                index_col=False,
                dtype=types,
                keep_default_na=False,
                na_values=[""],
                low_memory=False,
            )

    def _typed(self, text: "pd.Series") -> "pd.Series":
        """Numbers, if these and words for missing ones are all there is, else the text."""
        import pandas as pd

        known = text[~text.isin(MISSING)].dropna()
        if known.empty:
            return text
        commas = self.delimiter != "," and known.str.contains(",", regex=False).any()
        if commas and known.str.fullmatch(DECIMAL_COMMA).all():
            self.decimal = ","
            known = known.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        try:
            return pd.to_numeric(known).reindex(text.index)
        except ValueError:
            return text


def require_different(name: str, columns: Sequence[str]) -> None:
    """Refuse columns of the same name."""
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"{name} has two columns called {twice[0]!r}.")


def is_tsv(path: Path) -> bool:
    """By the extension."""
    return ending(path) in (".tsv", ".tsv.gz")


def delimiter_for(path: Path) -> str:
    """By the extension."""
    return "\t" if is_tsv(path) else ","


def open_text(path: Path) -> TextIO:
    """To read text in UTF-8, gzipped or not, whatever the file is called."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == GZIP
    if is_gzip:
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


@contextmanager
def open_to_write(path: Path) -> Iterator[TextIO]:
    """To write text in UTF-8, gzipped if the name ends in .gz; the same text gives the same bytes."""
    if path.suffix.lower() != ".gz":
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file


@contextmanager
def said_plainly(name: str) -> Iterator[None]:
    """What goes wrong in reading a CSV file, in a sentence that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise ValueError(f"{name} is not text in UTF-8 (it has the byte 0x{wrong:02x}): save it as UTF-8.") from error
    except Warning as error:  # pandas warns of it in the first row, and raises in later ones
        raise ValueError(f"{name} has more cells in its first row than names in its header.") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is not a gzip file that can be read: {first_line(error)}.") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{name} is not a CSV file that can be read: {first_line(error)}.") from error


def first_line(error: BaseException) -> str:
    """What the error says, without its end."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _most(line: str) -> int:
    """How many delimiters of one kind the line has."""
    return max(line.count(delimiter) for delimiter in DELIMITERS)


def _by_row(columns: Columns, rows: int, decimal: str) -> Iterator[tuple[Any, ...]]:
    """The values of each row, as Python's own numbers, which are written so that they can be read again exactly."""
    for start in range(0, rows, CHUNK):
        piece = slice(start, min(start + CHUNK, rows))
        lists = [_cells(values[piece]) for values in columns.values()]
        if decimal != ".":
            lists = [[_with(decimal, value) for value in values] for values in lists]
        yield from zip(*lists, strict=True) if lists else repeat((), piece.stop - piece.start)


def _cells(values: np.ndarray) -> list[Any]:
    """Nothing where a number is missing."""
    cells = values.tolist()
    return ["" if value != value else value for value in cells] if values.dtype.kind == "f" else cells


def _with(decimal: str, value: Any) -> Any:
    return repr(value).replace(".", decimal) if isinstance(value, float) else value


def _is_text(column: "pd.Series") -> bool:
    from pandas.api import types

    return types.infer_dtype(column, skipna=True) == "string"


def _integers_if_lossless(text: "pd.Series") -> "pd.Series":
    """The column as integers if each is written as Python would write it: `7`, but not `07` or `7.0`."""
    known = text.dropna()
    if len(known) < len(text) or not known.str.fullmatch(INTEGER).all():
        return text
    return text.astype("int64")
