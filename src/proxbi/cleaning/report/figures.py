"""The charts and counts of the report."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.result import Cleaned, NoiseShare, OuterStep, Removal
from proxbi.report.markup import Svg, number, percent, short
from proxbi.report.svg import Curve, Mark, histogram, intervals, lines

MATRIX = 20  # the most classes whose matrix fits on a page
PAIRS = 25  # cells listed in its place
BARS = 30
LETTERS = 80  # the maximal length of a name

Row = dict[str, Any]


def histograms(cleaned: Cleaned) -> list[Svg]:
    """Weight and quality, of untrusted and of trusted rows."""
    parts: dict[str, Bool[np.ndarray, " rows"]] = {"untrusted": ~cleaned.trusted, "trusted": cleaned.trusted}
    return [
        histogram({name: values[part] for name, part in parts.items() if part.any()}, label)
        for values, label in ((cleaned.weight, "weight"), (cleaned.quality, "quality of the label"))
    ]


def annotators(cleaned: Cleaned, names: Sequence[str]) -> Row | None:
    """Bars of the share of wrong votes of each annotator, if they have names."""
    found = [] if cleaned.consensus is None or not names else cleaned.consensus.annotators
    shares = [NoiseShare(which, each.votes, each.rate) for which, each in enumerate(found)]
    return rates(shares, names, "share of wrong votes", "the number of votes")


def rates(
    noise: list[NoiseShare],
    names: Sequence[str],
    label: str = "share of wrong labels",
    counted: str = "the number of rows that are not trusted",
) -> Row | None:
    """Bars of the noise rate by class or group, the highest first, and a note."""
    if not noise:
        return None
    shown = sorted(noise, key=lambda each: (not np.isfinite(each.share.estimate), -each.share.estimate))[:BARS]
    marks = [Mark(short(names[each.which], LETTERS), *each.share, note=f" ({each.rows:,})") for each in shown]
    note = f"In brackets: {counted}."
    if len(noise) > BARS:
        note += f" The {BARS} of {len(noise)} with the highest rate are shown."
    return {"chart": intervals(marks, f"{label}, with 95 % interval", percent, bars=True), "note": note}


def confusion(cleaned: Cleaned, given: Int[np.ndarray, " rows"], labels: Sequence[str]) -> Row:
    """Untrusted rows by given and suggested label: a matrix of (count, heat in 0..1) with its sums; or, for many
    classes, its largest off-diagonal cells as (given, suggested, count, share of the given label).
    """
    judged, classes = ~cleaned.trusted, len(labels)
    names = [short(name, LETTERS) for name in labels]
    counts = np.zeros((classes, classes), int)
    np.add.at(counts, (given[judged], cleaned.suggested[judged]), 1)
    share = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    changed = ~np.eye(classes, dtype=bool)
    if classes <= MATRIX:
        heat = share * changed / max(float((share * changed).max()), 1e-12)
        cells = [list(zip(*row, strict=True)) for row in zip(counts.tolist(), heat.tolist(), strict=True)]
        sums = counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
        return {"names": names, "matrix": cells, "sums": sums, "pairs": []}
    largest = np.argsort(-counts * changed, axis=None, kind="stable")[:PAIRS]
    places = [divmod(int(place), classes) for place in largest]
    pairs = [
        (names[g], names[s], int(counts[g, s]), percent(float(share[g, s])))
        for g, s in places
        if g != s and counts[g, s] > 0
    ]
    return {"names": names, "matrix": [], "sums": ([], []), "pairs": pairs}


def convergence(history: list[OuterStep]) -> list[Svg]:
    """The upper loss, as the solver sees it and on rows held out from it; and the stationarity."""
    steps = [row.step for row in history]
    seen = Curve("seen by the solver", steps, [row.upper for row in history])
    held_out = Curve("held out", steps, [row.held_out for row in history])
    losses = [curve for curve in (seen, held_out) if np.isfinite(curve.y).any()]
    stationarity = Curve("stationarity", steps, [row.stationarity for row in history])
    charts = [lines(losses, "outer step", "upper loss")] if losses else []
    if np.isfinite(stationarity.y).any():
        charts.append(lines([stationarity], "outer step", "stationarity", log=True))
    return charts


def gap(history: list[OuterStep]) -> str:
    """The overfitting gap at the last step, in a sentence; empty where it was not measured."""
    if not history:
        return ""
    seen, held_out = history[-1].upper, history[-1].held_out
    if not np.isfinite(held_out - seen):
        return ""
    return (
        f"After the last step the loss is {number(seen)} on the rows that the solver sees and {number(held_out)} on "
        f"rows it does not see: an overfitting gap of {number(round(held_out - seen, 6))}."
    )


def removal(curve: list[Removal], flagged: int) -> list[Svg]:
    """Held-out loss and accuracy without the worst rows; a line stands at the number of flagged ones."""
    if not curve:
        return []
    dropped, label = [point.dropped for point in curve], "rows dropped, worst quality first"
    loss = Curve("loss", dropped, [point.loss for point in curve])
    accuracy = Curve("accuracy", dropped, [point.accuracy for point in curve])
    return [lines([each], label, f"held-out {each.name}", mark=flagged) for each in (loss, accuracy)]
