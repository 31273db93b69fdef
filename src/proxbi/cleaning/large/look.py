"""The first pass over a table in blocks: its classes and groups, the rows that may be learned from, and the rows that
decisions name.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.files.decisions import Named, Subject
from proxbi.cleaning.files.tables import Roles, truth_values
from proxbi.cleaning.inputs.checks import Words, group_indices, require_labels
from proxbi.cleaning.large.parquet import Part, batches, digest_of
from proxbi.cleaning.method.drawing import Drawn, drawn, merged


class TableOf(NamedTuple):
    """The table to clean."""

    parts: list[Part]
    given: Path
    roles: Roles
    decisions: Path | None
    digest: str
    """The digest of the files when the run began."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.parts[-1].first + self.parts[-1].rows

    @property
    def columns(self) -> int:
        """How many there are."""
        import pyarrow.parquet as pq

        return len(pq.read_schema(self.parts[0].path))


def digest_of_files(parts: list[Part]) -> str:
    """A digest of their marks, which change with the files: reading all their bytes would take too long."""
    return digest_of([part.mark() for part in parts])


class Looking(NamedTuple):
    """The arguments of `look`."""

    roles: Roles
    seed: int
    learn_from: int
    named: Named | None
    """Rows that were decided, or shown to a person."""


class Looked(NamedTuple):
    """The labels and groups of a file, each once, and the rows that may be learned from."""

    labels: np.ndarray
    undecided: np.ndarray
    """The labels without those of decided rows."""
    groups: list[str]
    drawn: Drawn
    named: dict[int, tuple[Any, Any]]
    """Label and id of rows that decisions name."""


def look(looking: Looking, part: Part) -> Looked:
    """Look at a piece of the table."""
    roles, label, by_hand = looking.roles, str(looking.roles.label), looking.named
    calls = None if by_hand is None else roles.id
    wanted = [name for name in (label, roles.trusted_column, roles.group, calls) if name is not None]
    labels, undecided, groups, places, named = [], [], [], [], dict[int, tuple[Any, Any]]()
    for first, table in batches(part, list(dict.fromkeys(wanted))):
        block, start = columns_of(roles, part, first, table), part.first + first
        labels.append(np.unique(block.labels))
        if block.groups is not None:
            groups.append(np.unique(group_indices(block.groups, len(block.groups), Words())[0]))
        trusted = np.zeros(len(block.labels), bool) if block.trusted is None else block.trusted
        if by_hand is not None:
            trusted = trusted | _within(by_hand.decided, start, len(trusted))
            seen = np.flatnonzero(_within(by_hand.rows, start, len(trusted)))
            ids = seen if calls is None else table.column(calls).take(seen).to_pylist()
            named |= {start + row: (block.labels[row], called) for row, called in zip(seen.tolist(), ids, strict=True)}
            undecided.append(np.unique(block.labels[~_within(by_hand.decided, start, len(trusted))]))
        places.append(drawn(looking.seed, looking.learn_from, trusted, first=start))
    kinds = [] if not groups else [str(name) for name in np.unique(np.concatenate(groups))]
    every = np.unique(np.concatenate(labels))
    rest = np.unique(np.concatenate(undecided)) if undecided else every
    return Looked(every, rest, kinds, merged(looking.seed, looking.learn_from, places), named)


def _within(rows: Int[np.ndarray, " named"], first: int, count: int) -> Bool[np.ndarray, " rows"]:
    """Which of the `count` rows from `first` on are among these."""
    found = np.zeros(count, bool)
    found[rows[slice(*np.searchsorted(rows, [first, first + count]))] - first] = True
    return found


class Columns(NamedTuple):
    """The columns of a batch that are not features."""

    labels: np.ndarray
    trusted: Any
    groups: np.ndarray | None


def columns_of(roles: Roles, part: Part, first: int, table: Any) -> Columns:
    """The columns, checked; error messages name the file and the row."""
    label = str(roles.label)

    def where(row: int) -> str:
        return part.where(first + row)

    def column(name: str) -> Any:
        return table.column(name).to_pandas()

    mark = roles.trusted_column
    return Columns(
        require_labels(column(label).to_numpy(), f"Column {label!r}", where),
        None if mark is None else truth_values(repr(mark), column(mark), where),
        None if roles.group is None else column(roles.group).to_numpy(dtype=object),
    )


def subject(table: TableOf, looked: list[Looked]) -> Subject | None:
    """The table that decisions must fit."""
    if table.decisions is None:
        return None
    named = {row: both for one in looked for row, both in one.named.items()}
    labels, ids = ({row: both[which] for row, both in named.items()} for which in (0, 1))
    classes = np.unique(np.concatenate([one.labels for one in looked]))
    called = None if table.roles.id is None else ids
    return Subject(str(table.given), table.digest, labels, called, classes, rows=table.rows)
