"""Solvers side by side: rows as `proxbi.compare` makes them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from proxbi._compare import CompareRow
from proxbi.plot._style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW, figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, GREY)
LINES = ("-", "--", "-.", ":")
MARKERS = "os^Dv*P"
CURRENCIES = {"calls": "oracle calls, all kinds", "seconds": "seconds, without compiling"}


def compare(rows: Sequence[CompareRow], optimum: float | None = None) -> "Figure":
    """The objective above `optimum` (by default the smallest in the rows) and the stationarity, each against oracle
    calls and against seconds.

    **Arguments:**

    - `rows`: what `proxbi.compare` returns.
    - `optimum`: the value that is subtracted from the objectives.

    **Returns:** a Matplotlib figure. Example: `proxbi.compare`.
    """
    finite = [row["objective"] for row in rows if np.isfinite(row["objective"])]
    if not finite:
        raise ValueError("rows must hold at least one finite objective.")
    floor = min(finite) if optimum is None else optimum
    panels = {
        "objective above the best known": lambda row: row["objective"] - floor,
        "stationarity": lambda row: row["stationarity"],
    }
    columns: Any = rows  # whose names are not known before the program runs
    names = list(dict.fromkeys(row["solver"] for row in rows))
    canvas = figure(10, 7)
    grid = canvas.subplots(2, 2, sharex="col", sharey="row")
    for axes_row, (label, measure) in zip(grid, panels.items(), strict=True):
        for axes, currency in zip(axes_row, CURRENCIES, strict=True):
            for place, name in enumerate(names):
                own = [row for row in columns if row["solver"] == name]
                _line(axes, [row[currency] for row in own], [measure(row) for row in own], name, place)
            axes.set(xscale="log", yscale="log")
            axes.grid(visible=True, alpha=0.25, linewidth=0.6)
            open_frame(axes)
        axes_row[0].set_ylabel(label)
    for axes, text in zip(grid[1], CURRENCIES.values(), strict=True):
        axes.set_xlabel(text)
    handles, labels = grid[1][0].get_legend_handles_labels()
    canvas.legend(
        handles, labels, loc="outside upper center", ncols=2 if len(names) == 4 else min(len(names), 3), frameon=False
    )
    return canvas


def _line(axes: Any, work: list[float], values: list[float], name: str, place: int) -> None:
    x, y = np.array(work, float), np.array(values, float)
    shown = np.isfinite(y) & (y > 0) & (x > 0)
    look = {"color": COLOURS[place % len(COLOURS)], "linestyle": LINES[place % len(LINES)], "linewidth": 1.8}
    look |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 5, "markevery": (0.02 * place, 0.2)}
    axes.plot(x[shown], y[shown], label=name, **look)
