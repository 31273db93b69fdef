"""Decisions of a person who went through the suspects: read from the CSV file that the report page saves.

Its columns are row (from 0), id (what the page calls the row), decision, label and digest, the SHA-256 of the data file
of the page. A cell that a spreadsheet might run as a formula has an apostrophe before it; so has one that begins
with an apostrophe, so that removing one restores the cell.
"""

import csv
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.files.csv_file import open_text, open_to_write, said_plainly
from proxbi.cleaning.inputs.checks import plain, some

COLUMNS = ("row", "id", "decision", "label", "digest")
KEEP, SKIP = "keep", "skip"
OF_SUSPECTS = ("given", "quality")
"""More columns, of a file of suspects."""
DECISIONS = ("take", KEEP, "other", SKIP)
"""Take the suggested label, keep the given one, another class; a row that was skipped is not decided."""
SHORT = 12
"""Digits of a digest that a message shows."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Decided(NamedTuple):
    """Rows of the data file, in order, and the label that each has by decision."""

    rows: Int[np.ndarray, " decided"]
    labels: np.ndarray

    def within(self, first: int, count: int) -> "Decided":
        """Those among `count` rows from `first` on, numbered from there."""
        ours = slice(*np.searchsorted(self.rows, [first, first + count]))
        return Decided(self.rows[ours] - first, self.labels[ours])

    def among(self, places: Int[np.ndarray, " some"]) -> "Decided":
        """Those among the rows with these places, which are in order, numbered by them."""
        ours = np.isin(self.rows, places)
        return Decided(np.searchsorted(places, self.rows[ours]), self.labels[ours])


class Named(NamedTuple):
    """Rows that a file of decisions names; nothing about them is checked yet."""

    rows: Int[np.ndarray, " named"]
    """In order."""
    decided: Int[np.ndarray, " decided"]
    """All but those that were skipped."""


class Subject(NamedTuple):
    """What the decisions must be about."""

    name: str
    digest: str
    given: np.ndarray | Mapping[int, Any]
    """The label of each row; None where it has none. Of a table that is not in memory, those of the rows named."""
    ids: Sequence[Any] | Mapping[int, Any] | None = None
    classes: np.ndarray | None = None
    """All labels there are, if `given` may lack some."""
    rows: int | None = None
    """How many there are, if `given` may lack some."""

    @property
    def labels(self) -> np.ndarray:
        """All that may be decided on."""
        return np.unique(self.given) if self.classes is None else self.classes  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.given) if self.rows is None else self.rows


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def guarded(text: str) -> str:
    """The text as a cell that no spreadsheet runs.

    >>> [guarded(text) for text in ("cat", "=cmd()", "-1", "'s")]
    ['cat', "'=cmd()", '-1', "''s"]
    """
    return "'" + text if re.match(r"['=+\-@\t\r\n]", text) and not NUMBER.fullmatch(text) else text


def unguarded(cell: str) -> str:
    """The text that a cell stands for.

    >>> all(unguarded(guarded(text)) == text for text in ("cat", "=cmd()", "-1", "'s"))
    True
    """
    return cell.removeprefix("'")


def read_decisions(path: Path, about: Subject) -> Decided:
    """The decisions, or an error that names the file and the line: they may be about another file, about rows that
    this one does not have, or give labels that it does not know.
    """
    known = {str(plain(label)): label for label in about.labels}
    decided: dict[int, Any] = {}
    for number, line in _lines(path):
        where = f"line {number} of {path}"
        row = _row(line, where, about)
        if row in decided:
            raise ValueError(f"{where} decides about row {row} a second time.")
        label = _label(line, where, about, row, known)
        if line["decision"] != SKIP:
            decided[row] = label
    rows = np.array(sorted(decided), np.int64)
    return Decided(rows, np.array([decided[row] for row in rows.tolist()], about.labels.dtype))


def rows_named(path: Path) -> Named:
    """The rows that the decisions are about, to be looked up before `read_decisions`; cells that are no row are left to
    it.
    """
    found = [(int(line["row"]), line["decision"]) for _, line in _lines(path) if _is_row(line["row"])]
    rows, decided = ([row for row, decision in found if decision not in none] for none in ((), (SKIP,)))
    return Named(np.unique(np.array(rows, np.int64)), np.unique(np.array(decided, np.int64)))


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The lines of the file, by their numbers."""
    with open_text(path) as file, said_plainly(str(path)):
        reader = csv.DictReader(file, strict=True)
        lacking = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
        if lacking:
            raise ValueError(f"it has no column {lacking[0]!r}; decisions have {', '.join(COLUMNS)}")
        return [(reader.line_num, line) for line in reader]


def _is_row(cell: str | None) -> bool:
    return cell is not None and re.fullmatch(r"\d{1,15}", cell) is not None


def _row(line: dict[str, Any], where: str, about: Subject) -> int:
    """The row that a line is about."""
    if any(line[name] is None for name in COLUMNS):
        raise ValueError(f"{where} has too few cells.")
    if line["digest"] != about.digest:
        raise ValueError(
            f"{where} is a decision about another file: the digest of that one is {line['digest'][:SHORT]}..., the "
            f"digest of {about.name} is {about.digest[:SHORT]}...."
        )
    if not _is_row(line["row"]) or int(line["row"]) >= about.size:
        raise ValueError(f"{where} has the row {line['row']!r}; {about.name} has rows 0..{about.size - 1}.")
    row, called = int(line["row"]), unguarded(line["id"])
    if about.ids is not None and called != str(plain(about.ids[row])):
        raise ValueError(f"{where} calls row {row} {called!r}; in {about.name} it is {str(plain(about.ids[row]))!r}.")
    return row


def _label(line: dict[str, Any], where: str, about: Subject, row: int, known: dict[str, Any]) -> Any:
    """The label decided on."""
    if line["decision"] not in DECISIONS:
        raise ValueError(f"{where} has the decision {line['decision']!r}; known are {', '.join(DECISIONS)}.")
    label, given = unguarded(line["label"]), about.given[row]
    if line["decision"] == SKIP:
        return None
    if label not in known:
        raise ValueError(f"{where} has the label {label!r}, which no row has; there are {some(list(known))}.")
    # A row without votes shows what the features say, which another run may see otherwise: nothing to compare with.
    if line["decision"] == KEEP and given is not None and label != str(plain(given)):
        raise ValueError(f"{where} keeps the label {label!r} of row {row}, whose label is {str(plain(given))!r}.")
    return known[label]


def earlier(about: Subject, decided: Decided) -> list[dict[str, Any]]:
    """The decisions as the report page has them: it saves them again, with those of its reader."""
    found = []
    for row, label in zip(decided.rows.tolist(), decided.labels, strict=True):
        called = str(plain(row if about.ids is None else about.ids[row]))
        decision = KEEP if label == about.given[row] else "other"
        found.append({"row": row, "id": called, "decision": decision, "label": str(plain(label))})
    return found


def write_decisions(path: Path, about: Subject, decided: Decided) -> None:
    """Write decisions as the report page saves them."""
    pairs = zip(decided.rows.tolist(), decided.labels, strict=True)
    _write(
        path,
        COLUMNS,
        (_line(about, row, KEEP if label == about.given[row] else "other", label) for row, label in pairs),
    )


def write_suspects(path: Path, about: Subject, suspects: Decided, quality: Float[np.ndarray, " rows"]) -> None:
    """Write suspects, each with its suggested label, as decisions that are all still to be made: whoever fills in
    `decision`, and `label` where it is not the suggested one, can give the file back.
    """
    lines = (
        [*_line(about, row, SKIP, label), guarded(str(plain(about.given[row]))), f"{quality[row]:.4g}"]
        for row, label in zip(suspects.rows.tolist(), suspects.labels, strict=True)
    )
    _write(path, (*COLUMNS, *OF_SUSPECTS), lines)


def _line(about: Subject, row: int, decision: str, label: Any) -> list[Any]:
    called = str(plain(row if about.ids is None else about.ids[row]))
    return [row, guarded(called), decision, guarded(str(plain(label))), about.digest]


def _write(path: Path, columns: Sequence[str], lines: Iterable[list[Any]]) -> None:
    with open_to_write(path) as file:
        out = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)  # a lone \r would not be quoted else
        out.writerow(columns)
        out.writerows(lines)
