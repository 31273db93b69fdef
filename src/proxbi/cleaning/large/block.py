"""Blocks of rows: judged, or added up for the fit to all rows."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.inputs.checks import Where
from proxbi.cleaning.inputs.features import Encoder
from proxbi.cleaning.inputs.prepare import Names
from proxbi.cleaning.method.all_rows import Sums, add_up
from proxbi.cleaning.method.clean import flagged, one_thread
from proxbi.cleaning.method.scoring import Found, Judge
from proxbi.cleaning.method.summary import Figures
from proxbi.cleaning.method.table import Table

if TYPE_CHECKING:
    import pandas as pd


class Judging(NamedTuple):
    """Everything needed to judge a block; it is sent to worker processes."""

    judge: Judge
    encoder: Encoder
    names: Names
    group_count: int


class Block(NamedTuple):
    """Rows as given, with their roles."""

    X: "pd.DataFrame"
    labels: Int[np.ndarray, " rows"]
    """Indices of classes."""
    trusted: Bool[np.ndarray, " rows"] | None
    groups: Int[np.ndarray, " rows"] | None
    first: int
    """The index of its first row in the table."""
    before: Int[np.ndarray, " rows"] | None = None
    """The label of a row before a person decided it; -1 for all others."""


def block_apart(judging: Judging, X: "pd.DataFrame", labels: Int[np.ndarray, " apart"], before: int) -> Block:
    """Trusted rows given separately, after `before` others."""
    groups = np.full(len(labels), len(judging.names.groups)) if judging.names.groups else None
    return Block(X, labels, np.ones(len(labels), bool), groups, before)


class JudgedBlock(NamedTuple):
    """The results for the rows of a block."""

    found: Found
    issue: Bool[np.ndarray, " rows"]
    suggested: Int[np.ndarray, " rows"]
    trusted: Bool[np.ndarray, " rows"]
    figures: Figures


def judge_block(judging: Judging, block: Block, where: Where) -> JudgedBlock:
    """Judge a block: the same results as in one process with all rows."""
    table = _table_of(judging, block, where)
    with one_thread():
        found = judging.judge(table, block.first)
    issue = flagged(found, table.trusted)
    suggested = np.where(issue, found.other, block.labels)
    return JudgedBlock(found, issue, suggested, table.trusted, Figures.of(table, found.quality, issue))


def add_block(judging: Judging, block: Block, where: Where) -> Sums:
    """The sums over these rows, for the fit to all rows."""
    table = _table_of(judging, block, where)
    with one_thread():
        return add_up(judging.judge, table, block.first)


def _table_of(judging: Judging, block: Block, where: Where) -> Table:
    rows = len(block.labels)
    none = np.zeros(rows, bool)
    return Table(
        judging.encoder.transform(block.X, where),
        block.labels,
        none if block.trusted is None else block.trusted,
        np.zeros(rows, np.int32) if block.groups is None else block.groups.astype(np.int32),
        np.ones(rows, np.float32),
        len(judging.names.classes),
        before=block.before,
        group_count=judging.group_count,
    )
