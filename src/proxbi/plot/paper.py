"""Figure 1 of the paper, in its layout: a row for each share of wrong labels, a column for each family of methods."""

from typing import TYPE_CHECKING, Any, Literal

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


def figure1(rows: Rows, currency: Literal["inner_steps", "calls"] = "inner_steps") -> "Figure":
    """The upper objective against work, log-log, with the same limits across a row; several seeds are drawn as mean
    and range.
    """
    rates = sorted({row["p"] for row in rows})
    canvas = figure(12, 2.7 * len(rates) + 0.3)
    grid = canvas.subplots(len(rates), len(COLUMNS), sharey="row", squeeze=False)
    for p, line in zip(rates, grid, strict=True):
        for (prefix, kind), axes in zip(COLUMNS, line, strict=True):
            _panel(axes, [row for row in rows if row["p"] == p], prefix, kind, currency)
        line[0].set_ylabel(f"p = {p:g}\nupper objective")
    for (prefix, kind), axes in zip(COLUMNS, grid[0], strict=True):
        axes.set_title(f"{prefix}BiO-{kind}")
    for axes in grid[-1]:
        axes.set_xlabel(CURRENCIES[currency])
    return canvas


def _panel(axes: Any, rows: Rows, prefix: str, kind: str, currency: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    for (momentum, gamma), (colour, line) in LOOK.items():
        method = f"{prefix}BiO-{kind}{'m' if momentum else ''}"
        curves = _curves([row for row in rows if (row["method"], row["gamma"]) == (method, gamma)], currency)
        if curves is None:
            continue
        work, values = curves
        label = ("with momentum" if momentum else "plain") + ("" if gamma is None else f", γ = {gamma:g}")
        axes.plot(work, values.mean(axis=0), color=colour, linestyle=line, linewidth=1.6, label=label)
        if len(values) > 1:
            axes.fill_between(work, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    open_frame(axes)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, loc="lower left")


def _curves(rows: Rows, currency: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The mean work and, for each seed, the objective, step by step."""
    seeds = {row["seed"] for row in rows}
    if not seeds:
        return None
    each = [sorted((row for row in rows if row["seed"] == seed), key=lambda row: row["step"]) for seed in seeds]
    work = np.mean([[row[currency] for row in one] for one in each], axis=0)
    return work, np.array([[row["figure"] for row in one] for one in each])
