"""The rows that a person should check, and what the report shows of each."""

from collections.abc import Sequence
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int

from proxbi.cleaning.report.evidence import reasons
from proxbi.cleaning.report.png import thumbnails
from proxbi.cleaning.report.rows import Rows
from proxbi.cleaning.result import Cleaned
from proxbi.report.markup import short

if TYPE_CHECKING:
    import pandas as pd

LETTERS = 80  # the maximal length of a cell
COLUMNS = 8  # the maximal number of columns of the user's table
THUMBNAIL_BYTES = 1_000_000  # for all images of a table together
SIDES = 16, 128  # pixels of the smallest and the largest thumbnail


class Column(NamedTuple):
    """The head of a column; numbers are sorted as numbers."""

    name: str
    numeric: bool = False


class Cell(NamedTuple):
    """The text that is shown, and the value for sorting and copying."""

    text: str
    value: str


class Line(NamedTuple):
    """A row of the table, by its place; `given` and `suggested` are what the class filter asks for, and the workbench
    starts from.
    """

    row: int
    called: str
    given: int
    suggested: int
    picture: str | None
    cells: list[Cell]
    why: list[str]


class Table(NamedTuple):
    """A table of rows to check."""

    name: str
    columns: list[Column]
    lines: list[Line]
    classes: list[tuple[int, str]]
    """The classes that occur, for the filter."""


def suspects(cleaned: Cleaned, most: int) -> Int[np.ndarray, " suspects"]:
    """The flagged rows, the worst quality first."""
    flagged = np.flatnonzero(cleaned.issue)
    return flagged[np.argsort(cleaned.quality[flagged], kind="stable")][:most]


def teaching(cleaned: Cleaned, most: int) -> Int[np.ndarray, " rows"]:
    """The rows that would teach most if a person decided them."""
    return cleaned.review[:most]


def table(rows: Rows, name: str, chosen: Int[np.ndarray, " chosen"]) -> Table:
    """The table of the chosen rows."""
    cleaned, given = rows.cleaned, rows.given[chosen]
    suggested = cleaned.suggested[chosen]
    columns: list[tuple[Column, list[Cell]]] = [
        _id_column(rows, chosen),
        (Column("given"), [_text(rows.labels[c]) for c in given]),
        (Column("suggested"), [_text(rows.labels[c]) for c in suggested]),
        (Column("quality", True), [_share(q) for q in cleaned.quality[chosen]]),
    ]
    if rows.groups is not None and rows.group_of is not None:
        columns.append((Column("group"), [_text(rows.groups[g]) for g in rows.group_of[chosen]]))
    columns += _frame_columns(rows.frame, chosen)
    cells = [list(each) for each in zip(*(cells for _, cells in columns), strict=True)]
    called = [rows.called(int(row)) for row in chosen]
    parts = zip(
        chosen, called, given, suggested, _pictures(rows.images, chosen), cells, reasons(rows, chosen), strict=True
    )
    lines = [Line(rows.place(int(row)), name, int(g), int(s), *rest) for row, name, g, s, *rest in parts]
    classes = [(int(c), short(rows.labels[c], LETTERS)) for c in np.union1d(given, suggested)]
    return Table(name, [column for column, _ in columns], lines, classes)


def _id_column(rows: Rows, chosen: Int[np.ndarray, " chosen"]) -> tuple[Column, list[Cell]]:
    if rows.ids is None:
        return Column("row", True), [_number(int(row)) for row in chosen]
    ids = [rows.ids[row] for row in chosen]
    numeric = all(isinstance(each, int | float | np.number) for each in ids)
    return Column(rows.id_name, numeric), [_text(each) for each in ids]


def _frame_columns(frame: "pd.DataFrame | None", chosen: Int[np.ndarray, " chosen"]) -> list[tuple[Column, list[Cell]]]:
    """Columns by position: two may have the same name."""
    if frame is None:
        return []
    shown, made = frame.iloc[chosen, :COLUMNS], []
    for place, name in enumerate(shown.columns):
        values = shown.iloc[:, place]
        numeric = values.dtype.kind in "iuf"
        write = _number if numeric else _text
        cells = [_text("") if gone else write(value) for value, gone in zip(values, values.isna(), strict=True)]
        made.append((Column(short(str(name), LETTERS), numeric), cells))
    return made


def _pictures(images: np.ndarray | None, chosen: Int[np.ndarray, " chosen"]) -> Sequence[str | None]:
    """The largest thumbnails that fit: a PNG is hardly ever larger than its pixels, and base64 adds a third."""
    if images is None or not len(chosen):
        return [None] * len(chosen)
    channels = 1 if images.ndim == 3 else 3
    side = isqrt(THUMBNAIL_BYTES * 3 // (4 * channels * len(chosen)))
    return thumbnails(images[chosen], min(max(side, SIDES[0]), SIDES[1]))


def _text(value: object) -> Cell:
    shown = short(str(value), LETTERS)
    return Cell(shown, shown)


def _number(value: float) -> Cell:
    exact = value.item() if isinstance(value, np.generic) else value
    return Cell(f"{exact:.4g}" if isinstance(exact, float) else str(exact), str(exact))


def _share(value: float) -> Cell:
    return Cell("<0.001" if 0 <= value < 0.0005 else f"{value:.3f}", repr(float(value)))
