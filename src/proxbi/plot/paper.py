"""Figure 1 of the paper, in its layout: a row for each share of wrong labels, a column for each family of methods."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from proxbi.plot._style import BLUE, GREEN, ORANGE, YELLOW, figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]
COLUMNS = (("", "AID"), ("proximal ", "AID"), ("", "ITD"), ("proximal ", "ITD"))
CURRENCIES = {"inner_steps": "inner steps (the paper's k T)", "calls": "oracle calls, all kinds"}
LOOK = {  # (momentum, gamma) -> colour and line; lines differ too, for print
    (False, None): (BLUE, "-"),
    (True, None): (ORANGE, "--"),
    (False, 0.5): (BLUE, "-"),
    (True, 0.5): (ORANGE, "--"),
    (False, 5.0): (GREEN, "-."),
    (True, 5.0): (YELLOW, ":"),
}


_TWO_DECADES = 2.0  # of an axis: beyond, powers of ten are ticks enough
_NARROW = 0.7  # decades: within, 1 and 3 are too few ticks, and round numbers will do


def figure1(rows: Rows, currency: Literal["inner_steps", "calls"] = "inner_steps") -> "Figure":
    """The upper objective against work, log-log, with the same limits across a row; several seeds are drawn as mean
    and range.

    **Arguments:**

    - `rows`: those that `proxbi reproduce figure1` saves.
    - `currency`: what "work" is: lower steps, as in the paper, or oracle calls.

    **Returns:** a Matplotlib figure. Example: `proxbi.plot.compare`, with rows of another kind.
    """
    rates = sorted({row["p"] for row in rows})
    canvas = figure(12, 2.7 * len(rates) + 1.1)
    grid = canvas.subplots(len(rates), len(COLUMNS), sharey="row", squeeze=False)
    for p, line in zip(rates, grid, strict=True):
        for (prefix, kind), axes in zip(COLUMNS, line, strict=True):
            _panel(axes, [row for row in rows if row["p"] == p], prefix, kind, currency)
        line[0].set_ylabel(f"p = {p:g}\nupper objective")
        for axes in line:  # once all panels of the row have set their common limits
            _ticks(axes.yaxis)
    for (prefix, kind), axes in zip(COLUMNS, grid[0], strict=True):
        axes.set_title(f"{prefix}BiO-{kind}")
    for column in grid.T:
        column[-1].set_xlabel(CURRENCIES[currency])
        _legend(column)
    return canvas


class Series(NamedTuple):
    """The runs of one method: the mean work and, for each seed, the objective, step by step."""

    label: str
    place: int
    """The place of its look in `LOOK`."""
    work: np.ndarray
    values: np.ndarray


def panel(rows: Rows, prefix: str, kind: str, currency: str) -> list[Series]:
    """The curves of one panel of Figure 1."""
    found = []
    for place, (momentum, gamma) in enumerate(LOOK):
        method = f"{prefix}BiO-{kind}{'m' if momentum else ''}"
        own = [row for row in rows if (row["method"], row["gamma"]) == (method, gamma)]
        if own:
            label = ("with momentum" if momentum else "plain") + ("" if gamma is None else f", γ = {gamma:g}")
            found.append(Series(label, place, *_curves(own, currency)))
    return found


def _panel(axes: Any, rows: Rows, prefix: str, kind: str, currency: str) -> None:
    for label, place, work, values in panel(rows, prefix, kind, currency):
        colour, line = list(LOOK.values())[place]
        axes.plot(work, values.mean(axis=0), color=colour, linestyle=line, linewidth=1.6, label=label)
        if len(values) > 1:
            axes.fill_between(work, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _ticks(axes.xaxis)
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    open_frame(axes)


def _ticks(axis: Any) -> None:
    """Few labels, in plain numbers: those of a log axis over less than two decades would overlap."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    multiples = (1,) if decades > _TWO_DECADES else (1, 3)
    axis.set_major_locator(MaxNLocator(4) if decades < _NARROW else LogLocator(subs=multiples))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(column: Any) -> None:
    """One for all panels of a column, below them, where it covers no curve."""
    lines = {line.get_label(): line for axes in column for line in axes.lines}
    if lines:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.24)}
        column[-1].legend(lines.values(), lines.keys(), frameon=False, fontsize=8, **place)


def _curves(rows: Rows, currency: str) -> tuple[np.ndarray, np.ndarray]:
    seeds = {row["seed"] for row in rows}
    each = [sorted((row for row in rows if row["seed"] == seed), key=lambda row: row["step"]) for seed in seeds]
    work = np.mean([[row[currency] for row in one] for one in each], axis=0)
    return work, np.array([[row["figure"] for row in one] for one in each])
