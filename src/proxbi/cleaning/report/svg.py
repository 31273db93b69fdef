"""Small charts as inline SVG. Their colours come from the style sheet of the page, so they follow its dark mode; all
text is escaped.
"""

import re
from collections.abc import Callable, Sequence
from math import ceil, floor, isfinite, log10, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from proxbi.cleaning.report.markup import Svg, number, percent, short, tag

WIDTH = 440.0  # about the width of a phone, so that letters are not shrunk there
LETTERS = 20  # the maximal length of a name beside a bar; its tooltip has the whole name
BINS = 40
POINTS = 500  # of a curve; more could not be distinguished


class Axis(NamedTuple):
    """Maps values low..high to pixels start..end, linearly after `scale`."""

    low: float
    high: float
    start: float
    end: float
    scale: Callable[[float], float] = float

    def at(self, value: float) -> float:
        low, high = self.scale(self.low), self.scale(self.high)
        return self.start + (self.end - self.start) * (self.scale(value) - low) / (high - low)


class Mark(NamedTuple):
    """A value with an interval, in its own row; the note follows the name, and is never cut."""

    name: str
    value: float
    low: float
    high: float
    strong: bool = False
    note: str = ""


class Curve(NamedTuple):
    """Points joined by a line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def intervals(marks: Sequence[Mark], label: str, write: Callable[[float], str], *, bars: bool = False) -> Svg:
    """A row for each mark: its name, a dot (or a bar from 0) with its interval, and its value as `write` puts it."""
    left, right, row = 150.0, WIDTH - 74, 22.0
    bottom = 8 + row * len(marks)
    known = [v for mark in marks for v in (mark.value, mark.low, mark.high) if isfinite(v)]
    axis = _spread(known + [0.0] * bars, left, right)
    parts = _bottom_axis(axis, bottom, label, write, 3)
    for place, mark in enumerate(marks):
        parts += _interval(mark, 8 + row * (place + 0.5), axis, write, bars)
    return _chart(parts, bottom + 40, label)


def _interval(mark: Mark, y: float, axis: Axis, write: Callable[[float], str], bars: bool) -> list[Svg]:
    style, colour = ("strong", "c1") if mark.strong else ("plain", "c0")
    name = tag("title", mark.name), short(mark.name, LETTERS - len(mark.note)) + mark.note
    parts = [tag("text", *name, x=axis.start - 8, y=y + 4, class_=f"{style} end")]
    if isfinite(mark.value):
        x = axis.at(mark.value)
        if bars:
            parts.append(tag("rect", x=axis.start, y=y - 7, width=x - axis.start, height=14, class_=f"{colour} area"))
        else:
            parts.append(tag("circle", cx=x, cy=y, r=4, class_=f"{colour} fill"))
        parts.append(tag("text", write(mark.value), x=axis.end + 10, y=y + 4, class_=style))
    if isfinite(mark.low) and isfinite(mark.high):
        low, high = axis.at(mark.low), axis.at(mark.high)
        parts.append(tag("line", x1=low, x2=high, y1=y, y2=y, class_=f"{colour} line"))
    return parts


def histogram(values: dict[str, Float[np.ndarray, " rows"]], label: str) -> Svg:
    """The share of each series in 40 bins of [0, 1]. The height is the square root of the share: most rows are near 0
    or 1, and the interesting ones are between.
    """
    counts = {name: np.histogram(series, BINS, (0.0, 1.0))[0] / max(1, len(series)) for name, series in values.items()}
    top = max(float(share.max()) for share in counts.values()) or 1.0
    across, up = Axis(0.0, 1.0, 52, WIDTH - 12), Axis(0.0, top, 200, 30, sqrt)
    parts = _bottom_axis(across, 200, label, "{:g}".format, 5)
    ticks = [share for share in (0.01, 0.05, 0.2, 0.5, 1.0) if share <= top] or [top]
    parts += _left_axis(up, ticks, "share of rows (square-root scale)", percent, across)
    edges = np.linspace(0, 1, BINS + 1)
    for place, share in enumerate(counts.values()):
        corners = zip(np.repeat(edges, 2)[1:-1], np.repeat(share, 2), strict=True)
        outline = " L".join(f"{across.at(float(x)):.1f},{up.at(float(y)):.1f}" for x, y in corners)
        closed = f"M{across.start},{up.start} L{outline} L{across.end},{up.start}"
        parts.append(tag("path", d=closed, class_=f"c{place} line d{place} wash"))
    return _chart(parts + _legend(list(values)), 240, label)


def lines(curves: Sequence[Curve], x_label: str, y_label: str, *, log: bool = False, mark: float | None = None) -> Svg:
    """Curves on the same axes; points that are not finite (or not positive, on a logarithmic axis) are left out. A
    vertical line is drawn at `mark`.
    """
    kept = [Curve(c.name, *_drawable(c, log)) for c in curves]
    across = _spread([x for c in kept for x in c.x] + ([] if mark is None else [mark]), 62, WIDTH - 14, margin=0)
    up = _spread([y for c in kept for y in c.y], 200, 30, log10 if log else float)
    parts = _bottom_axis(across, 200, x_label, number, 5)
    parts += _left_axis(up, _powers(up.low, up.high) if log else _nice(up.low, up.high, 5), y_label, number, across)
    if mark is not None:
        parts.append(tag("line", x1=across.at(mark), x2=across.at(mark), y1=30, y2=200, class_="mark"))
    for place, curve in enumerate(kept):
        points = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in zip(curve.x, curve.y, strict=True))
        parts.append(tag("polyline", points=points, class_=f"c{place} line d{place}"))
        if len(curve.x) == 1:  # a line through one point would not be seen
            parts.append(tag("circle", cx=across.at(curve.x[0]), cy=up.at(curve.y[0]), r=4, class_=f"c{place} fill"))
    return _chart(parts + _legend([curve.name for curve in kept]), 240, f"{y_label} against {x_label}")


def _spread(
    values: Sequence[float], start: float, end: float, scale: Callable[[float], float] = float, margin: float = 0.05
) -> Axis:
    """An axis that contains all values, with a margin; for bars it starts at 0."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if scale is log10:
        return Axis(low / 1.2, high * 1.2, start, end, scale)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - abs(low) / 2, high + (abs(high) / 2 or 1.0)
    room = margin * (high - low)
    return Axis(low - room * (low != 0), high + room, start, end)


def _nice(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(k * step, 12) for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    powers = range(ceil(log10(low)), floor(log10(high)) + 1)
    every = max(1, ceil(len(powers) / 5))
    return [10.0**k for k in powers if k % every == 0] or [low * 1.2]


def _drawable(curve: Curve, log: bool) -> tuple[list[float], list[float]]:
    pairs = [(float(x), float(y)) for x, y in zip(curve.x, curve.y, strict=True)]
    pairs = [(x, y) for x, y in pairs if isfinite(x) and isfinite(y) and (y > 0 or not log)]
    if len(pairs) > POINTS:
        pairs = [pairs[round(place)] for place in np.linspace(0, len(pairs) - 1, POINTS)]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _bottom_axis(axis: Axis, y: float, label: str, write: Callable[[float], str], most: int) -> list[Svg]:
    parts = [tag("line", x1=axis.start, x2=axis.end, y1=y, y2=y, class_="axis")]
    for tick in _nice(axis.low, axis.high, most):
        parts.append(tag("line", x1=axis.at(tick), x2=axis.at(tick), y1=y, y2=y + 4, class_="axis"))
        parts.append(tag("text", _plain(write(tick)), x=axis.at(tick), y=y + 17, class_="middle"))
    return [*parts, tag("text", label, x=(axis.start + axis.end) / 2, y=y + 34, class_="middle quiet")]


def _left_axis(
    axis: Axis, ticks: Sequence[float], label: str, write: Callable[[float], str], across: Axis
) -> list[Svg]:
    parts = [tag("text", label, x=2, y=12, class_="quiet")]
    for tick in ticks:
        parts.append(tag("line", x1=across.start, x2=across.end, y1=axis.at(tick), y2=axis.at(tick), class_="grid"))
        parts.append(tag("text", _plain(write(tick)), x=across.start - 6, y=axis.at(tick) + 4, class_="end"))
    return parts


def _plain(written: str) -> str:
    """A tick without trailing zeros."""
    return re.sub(r"\.?0+(?=\D*$)", "", written) if "." in written and "e" not in written else written


def _legend(names: Sequence[str]) -> list[Svg]:
    """Right-aligned above the plot, one name per line; a single line has no legend."""
    parts, right = [], WIDTH - 12
    for place, name in reversed(list(enumerate(names))):
        if len(names) == 1:
            break
        left = right - 6.5 * len(name)
        parts.append(tag("text", name, x=right, y=26, class_="end"))
        parts.append(tag("line", x1=left - 26, x2=left - 4, y1=22, y2=22, class_=f"c{place} line d{place}"))
        right = left - 40
    return parts


def _chart(parts: Sequence[Svg], height: float, title: str) -> Svg:
    attributes = {"viewBox": f"0 0 {WIDTH:g} {height:g}", "role": "img", "aria-label": title}
    return tag("svg", *parts, **attributes)
