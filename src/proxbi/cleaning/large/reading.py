"""The rows of a piece of the table, block by block, ready to be judged."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.files.decisions import Decided
from proxbi.cleaning.files.tables import Roles
from proxbi.cleaning.inputs.checks import Where, Words, class_indices, group_indices
from proxbi.cleaning.inputs.prepare import Names
from proxbi.cleaning.large.block import Block
from proxbi.cleaning.large.look import Columns, columns_of
from proxbi.cleaning.large.parquet import Part, batches


class Reading(NamedTuple):
    """The columns to read."""

    roles: Roles
    features: list[str]
    """The feature columns."""
    decided: Decided | None


class Read(NamedTuple):
    """A block of rows."""

    table: Any
    """As it is in the file."""
    labels: np.ndarray
    """As they are in the file."""
    block: Block
    where: Where
    """The names of its rows in messages."""


def blocks(reading: Reading, names: Names, part: Part) -> Iterator[Read]:
    """The rows of a piece."""
    for first, table in batches(part):
        columns = columns_of(reading.roles, part, first, table)
        count, place = len(columns.labels), part.first + first
        labels, trusted, before = _by_hand(reading, names, columns, place)
        known = class_indices(labels, Words(), names.classes)[1]
        groups = columns.groups
        group_of = None if groups is None else group_indices(groups, count, Words(), names.groups)[1]
        X = table.select(reading.features).to_pandas(ignore_metadata=True)
        block = Block(X, known, trusted, group_of, place, before)
        yield Read(table, columns.labels, block, partial(_where, part, first))


def _where(part: Part, first: int, row: int) -> str:
    """The name of a row of a block, given its number there."""
    return part.where(first + row)


def _by_hand(
    reading: Reading, names: Names, columns: Columns, first: int
) -> tuple[np.ndarray, Bool[np.ndarray, " rows"] | None, Int[np.ndarray, " rows"] | None]:
    """The labels and the trust of a block after decisions, and the earlier labels of decided rows."""
    if reading.decided is None:
        return columns.labels, columns.trusted, None
    count, classes = len(columns.labels), names.classes
    rows, decided = reading.decided.within(first, count)
    labels, before, picked = columns.labels.copy(), np.full(count, -1), np.zeros(count, bool)
    labels[rows], picked[rows] = decided, True
    # A label that no row has any longer is not a class.
    had = np.minimum(np.searchsorted(classes, columns.labels[rows]), len(classes) - 1)
    before[rows] = np.where(classes[had] == columns.labels[rows], had, -1)
    return labels, picked if columns.trusted is None else columns.trusted | picked, before
