"""Small charts as inline SVG. Their colours come from the style sheet of the page, so they follow its dark mode. All
text is escaped.
"""

import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from math import ceil, floor, isfinite, log10, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from proxbi.report.markup import Svg, number, percent, short, tag

WIDTH = 440.0  # about the width of a phone, so that letters are not shrunk there
BOTTOM, TALL = 200.0, 170.0  # where the lower axis of a plot is, and the height above it
EDGE = 22.0  # to the right of a plot: half of the last number below it
LINE = 16.0  # the height of a line of text above a plot
LETTER, KEY = 7.0, 40.0  # the widths of a letter, and of a line in a legend with the room around it
COLOURS, DASHES = 6, 4  # that the style sheet has; more curves than that repeat them
LETTERS, LEGEND = (
    20,
    54,
)  # the maximal lengths of a name beside a bar, whose tooltip has the whole name, and above a plot
BINS = 40
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SHORT = 5.0  # a logarithmic axis over less than this factor has the ticks of a linear one
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
    """A value with an interval, in its own row. The note follows the name and is never cut."""

    name: str
    value: float
    low: float
    high: float
    strong: bool = False
    note: str = ""


Numbers = Sequence[float] | Float[np.ndarray, " points"]


class Curve(NamedTuple):
    """Points joined by a line.

    Example: `lines`.
    """

    name: str
    """Its name in the legend; it has none there if this is empty."""
    x: Numbers
    """Positions."""
    y: Numbers
    """Heights, as many."""
    colour: int | None = None
    """0 to 5; by default the place among the curves."""
    dash: int | None = None
    """0 for a solid line, 1 to 3 for dashes; by default the place among the curves."""
    dots: bool = False
    """Whether points are dots on the line."""
    band: tuple[Numbers, Numbers] | None = None
    """The lower and the upper ends of a range that is shaded."""


def intervals(
    marks: Sequence[Mark], label: str, write: Callable[[float], str], *, bars: bool = False, log: bool = False
) -> Svg:
    """A row for each mark: its name, a dot (or a bar from 0) with its interval, and its value, formatted by `write`."""
    left, right, row = 150.0, WIDTH - 74, 22.0
    bottom = 8 + row * len(marks)
    known = [v for mark in marks for v in (mark.value, mark.low, mark.high) if isfinite(v)]
    axis = _spread(known + [0.0] * bars, left, right, log10 if log else float)
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
    """The share of each series in 40 bins of [0, 1]. The height is the square root of the share, because
    most rows are near 0 or 1 and the interesting ones lie between.
    """
    counts = {name: np.histogram(series, BINS, (0.0, 1.0))[0] / max(1, len(series)) for name, series in values.items()}
    top = max(float(share.max()) for share in counts.values()) or 1.0
    across, up = Axis(0.0, 1.0, 52, WIDTH - 12), Axis(0.0, top, BOTTOM, BOTTOM - TALL, sqrt)
    parts = _bottom_axis(across, BOTTOM, label, "{:g}".format, 5)
    ticks = [share for share in (0.01, 0.05, 0.2, 0.5, 1.0) if share <= top] or [top]
    parts += _left_axis(up, ticks, "share of rows (square-root scale)", percent, across)
    edges = np.linspace(0, 1, BINS + 1)
    for place, share in enumerate(counts.values()):
        corners = zip(np.repeat(edges, 2)[1:-1], np.repeat(share, 2), strict=True)
        outline = " L".join(f"{across.at(float(x)):.1f},{up.at(float(y)):.1f}" for x, y in corners)
        closed = f"M{across.start},{up.start} L{outline} L{across.end},{up.start}"
        parts.append(tag("path", d=closed, class_=f"c{place} line d{place} wash"))
    named = [Curve(name, (), (), place, place) for place, name in enumerate(values)]
    return _chart(parts + _legend(named).parts, BOTTOM + 40, label)


def lines(
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    log_x: bool = False,
    mark: float | None = None,
    level: float | None = None,
    title: str = "",
) -> Svg:
    """Draw curves on the same axes. Points that are not finite (or not positive, on a logarithmic axis) are left out.

    **Arguments:**

    - `curves`: what to draw.
    - `x_label`, `y_label`: under and beside the axes.
    - `log`, `log_x`: whether the vertical and the horizontal axis are logarithmic.
    - `mark`, `level`: the place of a vertical and of a horizontal line.
    - `title`: above the chart.

    **Returns:** the chart as a string of SVG, for `Picture`.

    >>> chart = lines([Curve("gap", [1, 10, 100], [1.0, 0.1, 0.01])], "step", "gap", log=True, log_x=True)
    >>> chart.count("<polyline")
    1
    """
    kept = [_drawable(_with_look(curve, place), log_x, log) for place, curve in enumerate(curves)]
    legend = _legend(kept, bool(title))
    head = LINE * (bool(title) + max(0, legend.rows - 1))
    across = _spread(
        [x for c in kept for x in c.x] + _known(mark), 62, WIDTH - EDGE, log10 if log_x else float, margin=0
    )
    heights = [y for c in kept for each in (c.y, *(c.band or ())) for y in each]
    up = _spread(heights + _known(level), head + BOTTOM, head + BOTTOM - TALL, log10 if log else float)
    parts = [tag("text", title, x=2, y=12, class_="strong")] if title else []
    parts += _bottom_axis(across, up.start, x_label, _as_power if log_x else number, 5)
    parts += _left_axis(up, _ticks(up, 5), y_label, _as_power if log else number, across, 12 + LINE * bool(title))
    if mark is not None:
        parts.append(tag("line", x1=across.at(mark), x2=across.at(mark), y1=up.end, y2=up.start, class_="mark"))
    if level is not None:
        parts.append(tag("line", x1=across.start, x2=across.end, y1=up.at(level), y2=up.at(level), class_="mark"))
    for curve in kept:
        parts += _curve(curve, across, up)
    words = f"{y_label} against {x_label}"
    return _chart(parts + legend.parts, up.start + 40, f"{title}: {words}" if title else words)


def file(charts: Sequence[Svg]) -> str:
    """The content of an SVG file with the charts side by side, dark on white."""
    heights = [float(re.findall(r'viewBox="0 0 \S+ (\S+)"', chart)[0]) for chart in charts]
    placed = [
        Svg(chart.replace("<svg", f'<svg x="{WIDTH * place:g}" width="{WIDTH:g}" height="{height:g}"', 1))
        for place, (chart, height) in enumerate(zip(charts, heights, strict=True))
    ]
    width, height = WIDTH * len(charts), max(heights)
    size: dict[str, float | str] = {"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height}
    style = tag("style", Svg(files("proxbi.report").joinpath("charts.css").read_text(encoding="utf-8")))
    paper = tag("rect", width="100%", height="100%", style="fill: white")
    return tag("svg", style, paper, *placed, xmlns="http://www.w3.org/2000/svg", **size)


def _with_look(curve: Curve, place: int) -> Curve:
    colour = place if curve.colour is None else curve.colour
    dash = place if curve.dash is None else curve.dash
    return curve._replace(name=short(curve.name, LEGEND), colour=colour % COLOURS, dash=dash % DASHES)


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _curve(curve: Curve, across: Axis, up: Axis) -> list[Svg]:
    places = [(across.at(x), up.at(y)) for x, y in zip(curve.x, curve.y, strict=True)]
    parts = []
    if curve.band is not None:
        low, high = (list(zip(curve.x, ends, strict=True)) for ends in curve.band)
        outline = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in high + low[::-1])
        parts.append(tag("polygon", points=outline, class_=f"c{curve.colour} wash"))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(tag("polyline", points=points, class_=f"c{curve.colour} line d{curve.dash}"))
    if curve.dots or len(places) == 1:  # a line through one point would not be seen
        parts += [tag("circle", cx=x, cy=y, r=4 - curve.dots, class_=f"c{curve.colour} fill") for x, y in places]
    return parts


def _spread(
    values: Sequence[float], start: float, end: float, scale: Callable[[float], float] = float, margin: float = 0.05
) -> Axis:
    """An axis that contains all values, with a margin; for bars it starts at 0."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if scale is log10 and not margin:
        return Axis(low, high if high > low else 2 * low, start, end, scale)
    if scale is log10:
        return Axis(low / 1.2, high * 1.2, start, end, scale)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - abs(low) / 2, high + (abs(high) / 2 or 1.0)
    room = margin * (high - low)
    return Axis(low - room * (low != 0), high + room, start, end)


def _nice(low: float, high: float, most: int) -> list[float]:
    """About `most` round numbers at most in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    digits = 12 - floor(log10(step))
    return [round(k * step, digits) for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _ticks(axis: Axis, most: int) -> list[float]:
    """About `most` ticks at most. On a logarithmic axis they are powers of ten, with ticks between on fewer than three
    decades.
    """
    if axis.scale is not log10 or axis.high < SHORT * axis.low:
        return _nice(axis.low, axis.high, most)
    low, high = log10(axis.low) - 1e-9, log10(axis.high) + 1e-9
    for wanted in (most, 2 * most):  # steps of 5 decades may leave too few
        powers = [10.0**k for k in _nice(low, high, wanted) if k == round(k)]
        if len(powers) > 2:
            return powers
    finer = [factor * 10.0**k for k in range(floor(low), ceil(high)) for factor in (1, 2, 5)]
    return [tick for tick in finer if low <= log10(tick) <= high]


def _drawable(curve: Curve, log_x: bool, log: bool) -> Curve:
    """The curve without points that cannot be drawn, and with at most 500."""
    columns = np.array([curve.x, curve.y, *(curve.band or ())], float)
    kept = np.isfinite(columns).all(axis=0)
    kept &= (columns > 0).all(axis=0, where=np.array([[log_x], *[[log]] * (len(columns) - 1)]))
    columns = columns[:, kept]
    if columns.shape[1] > POINTS:
        columns = columns[:, np.linspace(0, columns.shape[1] - 1, POINTS).round().astype(int)]
    x, y, *band = columns.tolist()
    return curve._replace(x=x, y=y, band=tuple(band) if band else None)


def _bottom_axis(axis: Axis, y: float, label: str, write: Callable[[float], str], most: int) -> list[Svg]:
    parts = [tag("line", x1=axis.start, x2=axis.end, y1=y, y2=y, class_="axis")]
    for tick in _ticks(axis, most):
        parts.append(tag("line", x1=axis.at(tick), x2=axis.at(tick), y1=y, y2=y + 4, class_="axis"))
        parts.append(tag("text", _plain(write(tick)), x=axis.at(tick), y=y + 17, class_="middle"))
    return [*parts, tag("text", label, x=(axis.start + axis.end) / 2, y=y + 34, class_="middle quiet")]


def _left_axis(
    axis: Axis, ticks: Sequence[float], label: str, write: Callable[[float], str], across: Axis, top: float = 12
) -> list[Svg]:
    parts = [tag("text", label, x=2, y=top, class_="quiet")]
    for tick in ticks:
        parts.append(tag("line", x1=across.start, x2=across.end, y1=axis.at(tick), y2=axis.at(tick), class_="grid"))
        parts.append(tag("text", _plain(write(tick)), x=across.start - 6, y=axis.at(tick) + 4, class_="end"))
    return parts


def _as_power(value: float) -> str:
    """The number, written as a power of ten if it is one and long.

    >>> _as_power(100.0), _as_power(1e6), _as_power(1e-12), _as_power(2e5)
    ('100', '10⁶', '10⁻¹²', '200,000')
    """
    exponent = round(log10(value), 9)
    if exponent != int(exponent) or abs(exponent) < 4:
        return number(value)
    return "10" + f"{exponent:.0f}".translate(SUPERSCRIPTS)


def _plain(written: str) -> str:
    """A tick without trailing zeros."""
    return re.sub(r"\.?0+(?=\D*$)", "", written) if "." in written and "e" not in written else written


class Legend(NamedTuple):
    """The names of curves above a plot."""

    parts: list[Svg]
    rows: int


def _legend(curves: Sequence[Curve], below_title: bool = False) -> Legend:
    """The legend, right-aligned above the plot in as many rows as needed. A single curve has none."""
    named = [curve for curve in curves if curve.name]
    rows: list[list[Curve]] = []
    for curve in named if len(curves) > 1 else ():
        if not rows or sum(_room(each) for each in [*rows[-1], curve]) > WIDTH - 12:
            rows.append([])
        rows[-1].append(curve)
    parts = []
    for place, row in enumerate(rows):
        right, y = WIDTH - 12, 26 + LINE * (place + below_title)
        for curve in reversed(row):
            left = right - LETTER * len(curve.name)
            parts.append(tag("text", curve.name, x=right, y=y, class_="end"))
            look = f"c{curve.colour} line d{curve.dash}"
            parts.append(tag("line", x1=left - 26, x2=left - 4, y1=y - 4, y2=y - 4, class_=look))
            right = left - KEY
    return Legend(parts, len(rows))


def _room(curve: Curve) -> float:
    return LETTER * len(curve.name) + KEY


def _chart(parts: Sequence[Svg], height: float, title: str) -> Svg:
    attributes = {"viewBox": f"0 0 {WIDTH:g} {height:g}", "role": "img", "aria-label": title}
    return tag("svg", *parts, **attributes)
