"""Noise rates with intervals, and warnings in words."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.method.bilevel import Solved
from proxbi.cleaning.method.scoring import Judged
from proxbi.cleaning.method.selection import Verdict
from proxbi.cleaning.method.table import Table
from proxbi.cleaning.result import Interval, NoiseShare

FEW, MOST = 5, 0.8
"""Fewer trusted rows of a class than this are few; a larger share of flagged labels is alarming."""


UNKNOWN = Interval(math.nan, math.nan, math.nan)


class Tally(NamedTuple):
    """Sums over untrusted rows, by class or group. The tallies of the blocks of a table add up."""

    rows: Int[np.ndarray, " indices"]
    flagged: Int[np.ndarray, " indices"]
    wrong: Float[np.ndarray, " indices"]
    """Sums of 1 - q, with q the qualities."""
    spread: Float[np.ndarray, " indices"]
    """Sums of q (1 - q)."""

    def total(self) -> "Tally":
        """The sum over all classes or groups."""
        return Tally(*(np.sum(part, keepdims=True) for part in self))


class Figures(NamedTuple):
    """Counts and sums over a table, or over a block of it."""

    by_class: Tally
    by_group: Tally
    trusted: Int[np.ndarray, " classes"]
    decided: int

    @classmethod
    def of(cls, table: Table, quality: Float[np.ndarray, " rows"], issue: Bool[np.ndarray, " rows"]) -> "Figures":
        """The figures of these rows."""
        noisy = ~table.trusted & table.voted
        wrong = 1 - quality[noisy]

        def tally(index: Int[np.ndarray, " rows"], indices: int) -> Tally:
            ours = index[noisy]
            weighed = (None, issue[noisy], wrong, wrong * (1 - wrong))
            rows, flagged, *sums = (np.bincount(ours, each, indices) for each in weighed)
            return Tally(rows.astype(np.int64), flagged.astype(np.int64), *sums)

        trusted = np.bincount(table.labels[table.trusted], minlength=table.classes)
        by_class, by_group = tally(table.labels, table.classes), tally(table.groups, table.group_count)
        return cls(by_class, by_group, trusted, int(np.sum(table.decided)))

    @classmethod
    def sum(cls, parts: "Iterable[Figures]") -> "Figures":
        """The figures of a table from those of its blocks, added in order."""
        first, *others = parts
        for one in others:
            by_class, by_group = (Tally(*map(np.add, a, b)) for a, b in zip(first[:2], one[:2], strict=True))
            first = cls(by_class, by_group, first.trusted + one.trusted, first.decided + one.decided)
        return first


def wrong_share(total: Tally, judged: Judged, ours: Bool[np.ndarray, " some"]) -> Interval:
    r"""The share of wrong labels among some untrusted rows, and its 95 % interval; `ours` marks those that are in
    `judged.some`.

    With q the qualities, the estimate is the mean of 1 - q. Its variance is the sum of three: the variance of this mean
    over the drawn calibrations; sum q (1 - q) / n^2, that of the number of wrong labels if the calibration is right;
    and the mean square distance to the estimates of other models and of the first fit. If no noise was detected, the
    interval begins at 0.
    """
    rows, _, wrong, spread = (float(part[0]) for part in total)
    if not rows or not ours.any():
        return UNKNOWN
    drawn = 1 - judged.drawn[:, ours].mean(axis=1)
    estimate = wrong / rows
    apart = np.mean(judged.otherwise[:, ours] - drawn_from(judged)[ours], axis=1)
    reach = 1.96 * math.sqrt(float(drawn.var(ddof=1)) + spread / rows**2 + float(np.mean(apart**2)))
    low, high = estimate - reach, estimate + reach
    if not judged.noisy:
        low, high = 0.0, max(high, float(drawn.mean()) + reach)
    return Interval(estimate, max(0.0, low), min(1.0, high))


def drawn_from(judged: Judged) -> Float[np.ndarray, " some"]:
    """The qualities to compare other models with. If no noise was detected: what they would be with noise."""
    return judged.quality[judged.some] if judged.noisy else judged.drawn.mean(axis=0)


class Rates(NamedTuple):
    """Shares of wrong labels."""

    overall: Interval
    by_class: list[NoiseShare]
    by_group: list[NoiseShare]


def rates(figures: Figures, judged: Judged, some: Table) -> Rates:
    """The rates, from figures of all rows and from the draws for the rows `some`, those of `judged.some`."""
    noisy = ~some.trusted & some.voted

    def by(tally: Tally, index: Int[np.ndarray, " some"]) -> list[NoiseShare]:
        shares = [
            wrong_share(Tally(*(part[each : each + 1] for part in tally)), judged, noisy & (index == each))
            for each in range(len(tally.rows))
        ]
        counted = zip(tally.rows, shares, strict=True)
        return [NoiseShare(each, int(rows), share) for each, (rows, share) in enumerate(counted)]

    overall = wrong_share(figures.by_class.total(), judged, noisy)
    return Rates(overall, by(figures.by_class, some.labels), by(figures.by_group, some.groups))


def sentences(
    figures: Figures,
    tuned: list[Solved],
    verdict: Verdict,
    *,
    informed: bool,
    wanted: bool,
) -> Iterator[str]:
    """Warnings for readers of the result; `wanted`: whether weights were requested."""
    trusted, classes = figures.trusted, len(figures.trusted)
    if not trusted.any():
        yield (
            "No row is trusted: noisy rows judged noisy rows, in the held-out scores too, and a mistake that most rows "
            "of a kind share cannot be detected. A few dozen trusted rows would reveal it."
        )
    elif trusted.min() < FEW:
        few, none = int(np.sum(trusted < FEW)), int(np.sum(trusted == 0))
        without = f" ({none} of them none)" if none else ""
        yield (
            f"{few} of {classes} classes have fewer than {FEW} trusted rows{without}: findings about these "
            "classes are less certain."
        )
    failed = [one.status for one in tuned if one.status.failed]
    if failed:
        yield f"The solver for the settings failed; its starting values are used. {failed[0].value}"
    emptied = int(np.sum(figures.by_class.flagged > MOST * figures.by_class.rows))
    if emptied:
        yield (
            f"More than {MOST:.0%} of the labels of {emptied} of {classes} classes are flagged: check some of them "
            "before you drop any."
        )
    if not informed:
        yield "There are too few rows, or the features do not predict the labels: all labels are kept as they are."
    best = min(verdict.scores, key=lambda score: score.loss).name
    if informed and wanted and verdict.chosen != best:
        yield f"Weights {verdict.chosen!r} were requested; weights {best!r} do better on held-out rows."
