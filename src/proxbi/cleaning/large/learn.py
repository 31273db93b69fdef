"""Learning from a sample of a table, and the findings for the whole table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from proxbi.cleaning.inputs.prepare import Inputs, Names
from proxbi.cleaning.large.block import Judging
from proxbi.cleaning.method.all_rows import Sums
from proxbi.cleaning.method.clean import Learned, check_weights, flagged, learn, of_rows, one_thread
from proxbi.cleaning.method.scoring import Found, Judge
from proxbi.cleaning.method.summary import Figures, Tally
from proxbi.cleaning.method.table import Table, checked
from proxbi.cleaning.result import Cleaned, Overview, RowCounts
from proxbi.cleaning.run import FEWEST_ROWS, NOTHING_LEFT

AddAll = Callable[[Judging], Sums]
"""The sums over all rows of the table except those given separately, with the weights from this judge."""


class Taught(NamedTuple):
    """The result of learning from the sample."""

    inputs: Inputs
    """The inputs of the sample."""
    learned: Learned
    judging: Judging
    apart: Figures
    """The figures of trusted rows given separately."""


def teach(
    inputs: Inputs,
    places: Int[np.ndarray, " sample"],
    rows: int,
    apart: Int[np.ndarray, " apart"],
    names: Names,
    *,
    weights: Literal["auto", "free"],
    seed: int,
    progress: Callable[[str, float], None] | None = None,
    add: AddAll | None = None,
) -> Taught:
    """Learn from a sample, whose rows have these indices among the `rows` of the table; `apart` are the classes of
    trusted rows that come after them all. With `add` the regression is fitted to all rows, if there are more.
    """
    if inputs.trusted is None and rows < FEWEST_ROWS:
        raise ValueError(
            f"no row is trusted and there are {rows}: labels are judged by one another from {FEWEST_ROWS} on."
        )
    table = checked(
        inputs.features, inputs.labels, len(names.classes), inputs.trusted, inputs.groups, before=inputs.before
    )
    table = table._replace(whole=rows, group_count=max(1, len(inputs.group_names)), learn_from=inputs.learn_from)
    check_weights(weights, False, len(table.judges))

    def sums(judge: Judge) -> Sums:
        assert add is not None
        return add(Judging(judge._replace(places=places), inputs.encoder, names, table.group_count))

    with one_thread():
        learned = learn(table, weights, seed, progress, None if add is None or len(places) == rows else sums)
    judging = Judging(learned.judged.judge(places), inputs.encoder, names, table.group_count)
    return Taught(inputs, learned, judging, _of_trusted(table, apart))


def overview(taught: Taught, figures: Figures) -> Overview:
    """The findings for the table, from the figures of all its rows."""
    learned, by_class = taught.learned, figures.by_class
    grouped = taught.inputs.groups is not None
    found = learned.findings(figures, learned.sample.take(learned.judged.some), grouped=grouped)
    left = int(np.sum(by_class.rows - by_class.flagged + figures.trusted > 0))
    said = [*taught.inputs.warnings, *found.warnings, *([] if left > 1 else [NOTHING_LEFT])]
    total = by_class.total()
    counts = RowCounts(int(total.rows[0]), int(figures.trusted.sum()), figures.decided, int(total.flagged[0]))
    return Overview(counts=counts, **replace(found, warnings=said).of_the_whole())


def of_sample(taught: Taught, found: Overview) -> Cleaned:
    """The rows that were learned from, with the findings for the whole table: for the report."""
    judged, table = taught.learned.judged, taught.learned.sample
    known = Found(judged.weight, judged.quality, judged.other)
    rows = of_rows(known, flagged(known, table.trusted), table, judged.review)
    return Cleaned(**rows, whole=found.counts, **found.of_the_whole())


def _of_trusted(table: Table, labels: Int[np.ndarray, " trusted"]) -> Figures:
    """The figures of rows that are only counted."""

    def nothing(size: int) -> Tally:
        return Tally(*(np.zeros(size, kind) for kind in (int, int, float, float)))

    trusted = np.bincount(labels, minlength=table.classes)
    return Figures(nothing(table.classes), nothing(table.group_count), trusted, 0)
