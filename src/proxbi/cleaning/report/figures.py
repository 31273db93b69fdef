"""The charts and counts of the report."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.report.markup import Svg, number, percent, short
from proxbi.cleaning.report.svg import Curve, Mark, histogram, intervals, lines
from proxbi.cleaning.result import Cleaned

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


def rates(noise: list[Row], key: str, names: Sequence[str]) -> Row | None:
    """Bars of the noise rate by class or group, the highest first, and a note."""
    if not noise:
        return None
    shown = sorted(noise, key=lambda row: (not np.isfinite(row["estimate"]), -row["estimate"]))[:BARS]
    marks = [_rate(row, names[row[key]]) for row in shown]
    note = "In brackets: the number of rows that are not trusted."
    if len(noise) > BARS:
        note += f" The {BARS} of {len(noise)} with the highest rate are shown."
    return {"chart": intervals(marks, "share of wrong labels, with 95 % interval", percent, bars=True), "note": note}


def _rate(row: Row, name: str) -> Mark:
    return Mark(short(name, LETTERS), row["estimate"], row["low"], row["high"], note=f" ({row['rows']:,})")


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


def convergence(history: list[Row]) -> list[Svg]:
    """The upper loss on the rows that the solver sees and on held-out rows, and the stationarity."""
    losses = _known(history, {"upper": "seen by the solver", "held_out": "held out"})
    stationarity = _known(history, {"stationarity": "stationarity"})
    charts = []
    if losses:
        charts.append(lines(losses, "outer step", "upper loss"))
    if stationarity:
        charts.append(lines(stationarity, "outer step", "stationarity", log=True))
    return charts


def _known(history: list[Row], names: dict[str, str]) -> list[Curve]:
    """A curve over the steps for each column with numbers."""
    curves = [Curve(name, _column(history, "step"), _column(history, column)) for column, name in names.items()]
    return [curve for curve in curves if np.isfinite(curve.y).any()]


def gap(history: list[Row]) -> str:
    """The overfitting gap at the last step, in a sentence; empty if it was not measured."""
    if not history:
        return ""
    seen, held_out = (_column(history[-1:], name)[0] for name in ("upper", "held_out"))
    if not np.isfinite(held_out - seen):
        return ""
    return (
        f"After the last step the loss is {number(seen)} on the rows that the solver sees and {number(held_out)} on "
        f"rows it does not see: an overfitting gap of {number(round(held_out - seen, 6))}."
    )


def removal(curve: list[Row], flagged: int) -> list[Svg]:
    """Held-out loss and accuracy without the worst rows, with a line at the number of flagged rows."""
    if not curve:
        return []
    dropped, label = _column(curve, "dropped"), "rows dropped, worst quality first"
    return [
        lines([Curve(what, dropped, _column(curve, what))], label, f"held-out {what}", mark=flagged)
        for what in ("loss", "accuracy")
    ]


def _column(rows: list[Row], name: str) -> list[float]:
    return [np.nan if row.get(name) is None else float(row[name]) for row in rows]
