"""Rates with intervals, and sentences about what to be careful with."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from proxbi.cleaning.contest import Verdict
from proxbi.cleaning.result import Interval
from proxbi.cleaning.table import Table

FEW = 5
"""Trusted rows of a class."""


def wrong_share(quality: Float[np.ndarray, " rows"]) -> Interval:
    r"""The share of wrong labels among rows, and its 95 % interval, from the posteriors q that each is right.

    With L = (1 - r) a + r b the likelihood of a row when a share r is wrong, 1 - q = r b / L, and the derivative of
    log L in the log-odds of r is 1 - q - r. The sum of its squares over rows is the information about these log-odds,
    hence logit(r) +- 1.96 / sqrt(sum (1 - q - r)^2). Half a wrong row is added, as r may be 0.

    >>> Interval(*(round(float(end), 3) for end in wrong_share(np.repeat([0.01, 0.99], [200, 800]))))
    Interval(estimate=0.206, low=0.181, high=0.233)
    """
    wrong = 1 - np.asarray(quality, np.float64)
    if not len(wrong):
        return Interval(0.0, 0.0, 1.0)
    rate = (wrong.sum() + 0.5) / (len(wrong) + 1)
    reach = 1.96 / np.sqrt(np.sum((wrong - rate) ** 2) + 0.5)
    ends = 1 / (1 + np.exp(-(np.log(rate / (1 - rate)) + reach * np.array([-1, 1]))))
    return Interval(float(wrong.mean()), float(min(ends[0], wrong.mean())), float(max(ends[1], wrong.mean())))


def shares(name: str, indices: np.ndarray, count: int, quality: np.ndarray, noisy: Bool[np.ndarray, " rows"]) -> list[dict[str, Any]]:
    """`wrong_share` of the noisy rows with each index."""
    rows = []
    for index in range(count):
        ours = noisy & (indices == index)
        rows.append({name: index, "rows": int(ours.sum()), **wrong_share(quality[ours])._asdict()})
    return rows


def sentences(table: Table, verdict: Verdict, issue: Bool[np.ndarray, " rows"], fitted: int) -> list[str]:
    """Warnings."""
    said = []
    trusted = np.bincount(table.labels[table.trusted], minlength=table.classes)
    if not table.trusted.any():
        said.append(
            "No row is trusted: everything was judged by rows that are noisy themselves, the held-out scores too; an "
            "error that is the same in all rows of a kind cannot be seen. A few dozen trusted rows would show it."
        )
    elif trusted.min() < FEW:
        few = int(np.sum(trusted < FEW))
        said.append(f"{few} of {table.classes} classes have fewer than {FEW} trusted rows: what is said of them is less sure.")
    emptied = [
        c
        for c in range(table.classes)
        if (ours := (table.labels == c) & ~table.trusted).any() and issue[ours].mean() > 0.8
    ]
    if emptied:
        said.append(f"More than 80 % of the labels of {len(emptied)} class(es) are flagged, first of class {emptied[0]}: look at them before dropping any.")
    if not verdict.helped:
        said.append("Cleaning did not help: on held-out rows, training on all rows alike is as good as what was chosen.")
    return said
