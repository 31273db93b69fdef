"""CSV files: values with types for the cleaner, text for the copy."""

import csv
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 100_000
"""Rows whose new values are made Python objects at a time."""

Columns = dict[str, np.ndarray]


class Csv:
    """A CSV file, in UTF-8 and with a line of names; the delimiter is the one that this line has most of.

    `frame` has the values, with types; of the columns `text` as text, or as integers where that loses nothing.
    """

    def __init__(self, path: Path, text: Sequence[str] = ()) -> None:
        self.path = path
        with said_plainly(path), path.open(encoding="utf-8-sig", newline="") as file:
            self.delimiter = max(",;\t|", key=file.readline().count)
        self.names = next(self.cells(header=True), [])
        require_different(path, self.names)
        texts = [name for name in text if name in self.names]
        self.frame = self._read(dict.fromkeys(texts, "str"))
        for name in texts:
            self.frame[name] = _integers_if_lossless(self.frame[name])

    def cells(self, *, header: bool = False) -> Iterator[list[str]]:
        """The rows as text, or with `header` the names before them; blank lines are skipped, as pandas does."""
        limit = csv.field_size_limit(sys.maxsize)
        try:
            with said_plainly(self.path), self.path.open(encoding="utf-8-sig", newline="") as file:
                rows = (
                    row for row in csv.reader(file, delimiter=self.delimiter) if len(row) > 1 or "".join(row).strip()
                )
                if not header:
                    next(rows)
                yield from rows
        finally:
            csv.field_size_limit(limit)

    def copy(self, path: Path, added: Columns, replaced: Columns, kept: Bool[np.ndarray, " rows"]) -> None:
        """Write the text of the rows `kept` to `path`, with some columns replaced and some added."""
        places = [self.names.index(name) for name in replaced]
        width = len(self.names)
        with path.open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file, delimiter=delimiter_for(path), lineterminator="\n")
            out.writerow([*self.names, *added])
            news, others = _by_row(added, len(kept)), _by_row(replaced, len(kept))
            for row, new, other, keep in zip(self.cells(), news, others, kept.tolist(), strict=True):
                for place, value in zip(places, other, strict=True):
                    row[place] = value
                if keep:
                    out.writerow([*row, *[""] * (width - len(row)), *new])

    def _read(self, types: dict[str, str]) -> "pd.DataFrame":
        import pandas as pd

        with said_plainly(self.path), warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                self.path,
                sep=self.delimiter,
                encoding="utf-8-sig",
                names=self.names,
                header=0,
                index_col=False,
                dtype=types,
                low_memory=False,
            )


def require_different(path: Path, names: Sequence[str]) -> None:
    """Refuse columns of the same name."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has two columns called {twice[0]!r}.")


def delimiter_for(path: Path) -> str:
    """By the extension."""
    return "\t" if path.suffix.lower() == ".tsv" else ","


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """What goes wrong in reading a CSV file, in a sentence that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise ValueError(f"{path} is not text in UTF-8 (it has the byte 0x{wrong:02x}): save it as UTF-8.") from error
    except Warning as error:  # pandas warns of it in the first row, and raises in later ones
        raise ValueError(f"{path} has more cells in its first row than names in its header.") from error
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file that can be read: {first_line(error)}.") from error


def first_line(error: BaseException) -> str:
    """What the error says, without its end."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _by_row(columns: Columns, rows: int) -> Iterator[tuple[Any, ...]]:
    """The values of each row, as Python's own numbers, which are written so that they can be read again exactly."""
    for start in range(0, rows, CHUNK):
        piece = slice(start, min(start + CHUNK, rows))
        lists = [values[piece].tolist() for values in columns.values()]
        yield from zip(*lists, strict=True) if lists else repeat((), piece.stop - piece.start)


def _integers_if_lossless(text: "pd.Series") -> "pd.Series":
    """The column as integers if each is written as Python would write it: `7`, but not `07` or `7.0`."""
    known = text.dropna()
    if len(known) < len(text) or not known.str.fullmatch(r"0|-?[1-9]\d{0,17}").all():
        return text
    return text.astype("int64")
