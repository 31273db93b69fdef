"""Draws docs/benchmarks.png from the table "The default solver against tuned ones" of docs/benchmarks.md.

python docs/benchmarks.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
COLUMNS = {"default": ("#0072b2", "o"), "paper, tuned": ("#d55e00", "s"), "jaxopt, tuned": ("#8c8f99", "D")}


def table() -> dict[str, dict[str, str]]:
    """The cells of each problem, by column."""
    heads, _, *lines = (HERE / "benchmarks.md").read_text().partition("| problem | kappa |")[2].splitlines()
    columns = ["kappa", *(cell.strip() for cell in heads.strip("|").split("|"))]
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        if not line:
            return rows
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = dict(zip(columns, cells, strict=True))
    return rows


def main() -> None:
    rows = table()
    figure, axis = plt.subplots(figsize=(8, 5.5), layout="constrained")
    for column, (colour, marker) in COLUMNS.items():
        cells = [row[column] for row in rows.values()]
        calls = [float(cell.removeprefix("> ")) for cell in cells]
        axis.scatter(calls, list(rows), color=colour, marker=marker, s=32, label=column, zorder=3)
        for name, cell, number in zip(rows, cells, calls, strict=True):
            if cell.startswith(">"):  # at least so many
                arrow = {"arrowstyle": "->", "color": colour}
                axis.annotate("", (1.6 * number, name), (number, name), arrowprops=arrow)
    axis.set_xscale("log")
    axis.set_xlabel("oracle calls to 1e-6 of the stationarity at the start; an arrow: not reached with so many")
    axis.invert_yaxis()
    axis.grid(axis="x", color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.09), ncols=3)
    figure.savefig(HERE / "benchmarks.png", dpi=100)


if __name__ == "__main__":
    main()
