"""Rates with intervals, and sentences about what to be careful with."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.method.selection import Verdict
from proxbi.cleaning.method.bilevel import Solved
from proxbi.cleaning.method.table import Table
from proxbi.cleaning.result import Interval

FEW, MOST = 5, 0.8
"""Trusted rows of a class that are few, and the share of its labels flagged that is alarming."""


def wrong_share(quality: Float[np.ndarray, " rows"]) -> Interval:
    r"""The share of wrong labels among rows, and its 95 % interval, from the posteriors q that each is right.

    With L = (1 - r) a + r b the likelihood of a row when a share r is wrong, 1 - q = r b / L, and the derivative of
    log L in the log-odds of r is 1 - q - r. The sum of its squares over rows is the information about these log-odds,
    hence logit(r) +- 1.96 / sqrt(sum (1 - q - r)^2). Half a wrong row is added, as r may be 0.

    >>> print(*(f"{end:.3f}" for end in wrong_share(np.repeat([0.01, 0.99], [200, 800]))))
    0.206 0.182 0.233
    """
    wrong = 1 - np.asarray(quality, np.float64)
    if not len(wrong):
        return Interval(0.0, 0.0, 1.0)
    estimate = float(wrong.mean())
    rate = (wrong.sum() + 0.5) / (len(wrong) + 1)
    reach = 1.96 / np.sqrt(np.sum((wrong - rate) ** 2) + 0.5)
    low, high = 1 / (1 + np.exp(-(np.log(rate / (1 - rate)) + reach * np.array([-1, 1]))))
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate))


def wrong_shares(
    name: str,
    index: Int[np.ndarray, " rows"],
    indices: int,
    quality: Float[np.ndarray, " rows"],
    noisy: Bool[np.ndarray, " rows"],
) -> list[dict[str, Any]]:
    """`wrong_share` of the noisy rows with each index; `name` is what it is called."""
    parts = [quality[noisy & (index == each)] for each in range(indices)]
    return [{name: each, "rows": len(part), **wrong_share(part)._asdict()} for each, part in enumerate(parts)]


def sentences(
    table: Table, tuned: list[Solved], verdict: Verdict, informed: bool, issue: Bool[np.ndarray, " rows"]
) -> Iterator[str]:
    """What a reader of the result should know."""
    trusted = np.bincount(table.labels[table.trusted], minlength=table.classes)
    if not table.trusted.any():
        yield (
            "No row is trusted: noisy rows judged noisy rows, in the held-out scores too, and a mistake that most rows "
            "of a kind share cannot be seen. A few dozen trusted rows would show it."
        )
    elif trusted.min() < FEW:
        few = int(np.sum(trusted < FEW))
        yield f"{few} of {table.classes} classes have fewer than {FEW} trusted rows; what is said of them is less sure."
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
    if informed and verdict.chosen != best:
        yield f"Weights {verdict.chosen!r} were asked for; weights {best!r} do better on held-out rows."
