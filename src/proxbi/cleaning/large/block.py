"""A block of rows, judged."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.inputs.checks import Where
from proxbi.cleaning.inputs.features import Encoder
from proxbi.cleaning.inputs.prepare import Names
from proxbi.cleaning.method.clean import flagged, one_thread
from proxbi.cleaning.method.scoring import Found, Judge
from proxbi.cleaning.method.summary import Figures
from proxbi.cleaning.method.table import Table

if TYPE_CHECKING:
    import pandas as pd


class Judging(NamedTuple):
    """All that it takes to judge a block; it goes to the processes that do."""

    judge: Judge
    encoder: Encoder
    names: Names
    group_count: int


class Block(NamedTuple):
    """Rows as they come, in their roles."""

    X: "pd.DataFrame"
    labels: Int[np.ndarray, " rows"]
    """Indices of classes."""
    trusted: Bool[np.ndarray, " rows"] | None
    groups: Int[np.ndarray, " rows"] | None
    first: int
    """The place of its first row in the table."""
    before: Int[np.ndarray, " rows"] | None = None
    """The label that a row had until a person decided about it; -1 for all others."""


class JudgedBlock(NamedTuple):
    """What was found of its rows."""

    found: Found
    issue: Bool[np.ndarray, " rows"]
    suggested: Int[np.ndarray, " rows"]
    trusted: Bool[np.ndarray, " rows"]
    figures: Figures


def judge_block(judging: Judging, block: Block, where: Where) -> JudgedBlock:
    """The same as in one process with all rows."""
    rows = len(block.labels)
    none = np.zeros(rows, bool)
    table = Table(
        judging.encoder.transform(block.X, where),
        block.labels,
        none if block.trusted is None else block.trusted,
        np.zeros(rows, np.int32) if block.groups is None else block.groups.astype(np.int32),
        np.ones(rows, np.float32),
        len(judging.names.classes),
        before=block.before,
        group_count=judging.group_count,
    )
    with one_thread():
        found = judging.judge(table, block.first)
    issue = flagged(found, table.trusted)
    suggested = np.where(issue, found.other, block.labels)
    return JudgedBlock(found, issue, suggested, table.trusted, Figures.of(table, found.quality, issue))
