"""Rates with intervals, and sentences about what to be careful with."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.method.bilevel import Solved
from proxbi.cleaning.method.scoring import Judged
from proxbi.cleaning.method.selection import Verdict
from proxbi.cleaning.method.table import Table
from proxbi.cleaning.result import Interval

FEW, MOST = 5, 0.8
"""Trusted rows of a class that are few, and the share of its labels flagged that is alarming."""


UNKNOWN = Interval(math.nan, math.nan, math.nan)


def wrong_share(judged: Judged, rows: Bool[np.ndarray, " rows"]) -> Interval:
    r"""The share of wrong labels among some of the rows that are not trusted, and its 95 % interval.

    With q the qualities, the estimate is the mean of 1 - q. Three variances add up: that of this mean over the drawn
    calibrations; sum q (1 - q) / n^2, of the number of wrong labels when the calibration is right; and the mean square
    of how far other models, and the first round, are from it. Where no noise is seen the interval begins at 0.
    """
    ours = rows[judged.some]
    if not rows.any() or not ours.any():
        return UNKNOWN
    wrong, drawn = 1 - judged.quality[rows], 1 - judged.drawn[:, ours].mean(axis=1)
    estimate = float(wrong.mean())
    within = np.sum(wrong * (1 - wrong)) / len(wrong) ** 2
    apart = np.mean(judged.otherwise[:, ours] - drawn_from(judged)[ours], axis=1)
    reach = 1.96 * math.sqrt(float(drawn.var(ddof=1)) + within + float(np.mean(apart**2)))
    low, high = estimate - reach, estimate + reach
    if not judged.noisy:
        low, high = 0.0, max(high, float(drawn.mean()) + reach)
    return Interval(estimate, max(0.0, low), min(1.0, high))


def drawn_from(judged: Judged) -> Float[np.ndarray, " some"]:
    """What the other models are compared with: the quality; or, where no noise is believed, what it would be with."""
    return judged.quality[judged.some] if judged.noisy else judged.drawn.mean(axis=0)


def wrong_shares(
    name: str, index: Int[np.ndarray, " rows"], indices: int, judged: Judged, noisy: Bool[np.ndarray, " rows"]
) -> list[dict[str, Any]]:
    """`wrong_share` of the noisy rows with each index; `name` is what it is called."""
    parts = [noisy & (index == each) for each in range(indices)]
    return [
        {name: each, "rows": int(part.sum()), **wrong_share(judged, part)._asdict()} for each, part in enumerate(parts)
    ]


def sentences(
    table: Table,
    tuned: list[Solved],
    verdict: Verdict,
    issue: Bool[np.ndarray, " rows"],
    *,
    informed: bool,
    wanted: bool,
) -> Iterator[str]:
    """What a reader of the result should know; `wanted` are weights that were asked for."""
    trusted = np.bincount(table.labels[table.trusted], minlength=table.classes)
    if not table.trusted.any():
        yield (
            "No row is trusted: noisy rows judged noisy rows, in the held-out scores too, and a mistake that most rows "
            "of a kind share cannot be seen. A few dozen trusted rows would show it."
        )
    elif trusted.min() < FEW:
        few, none = int(np.sum(trusted < FEW)), int(np.sum(trusted == 0))
        without = f" ({none} of them none)" if none else ""
        yield (
            f"{few} of {table.classes} classes have fewer than {FEW} trusted rows{without}: what is said of these "
            "classes is less sure."
        )
    failed = [one.status for one in tuned if one.status.failed]
    if failed:
        yield f"The settings could not be solved for, and are those the solver started with. {failed[0].value}"
    flagged = [issue[table.noisy[table.labels[table.noisy] == each]] for each in range(table.classes)]
    emptied = [each for each, ours in enumerate(flagged) if len(ours) and ours.mean() > MOST]
    if emptied:
        yield (
            f"More than {MOST:.0%} of the labels of {len(emptied)} of {table.classes} classes are flagged: look at "
            "some of them before any are dropped."
        )
    if not informed:
        yield "Too few rows, or none of the features, tell what a label should be: all labels are kept as they are."
    best = min(verdict.scores, key=lambda row: row["loss"])["name"]
    if informed and wanted and verdict.chosen != best:
        yield f"Weights {verdict.chosen!r} were asked for; weights {best!r} do better on held-out rows."
