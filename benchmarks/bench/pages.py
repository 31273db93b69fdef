"""What was measured as a table (CSV), a picture and a page (HTML)."""

import csv
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from bench.environments import OURS
from bench.parts import Row, exponent
from proxbi.report import Picture, Rows, Text, write_page

COLUMNS = ("part", "name", "what", "median", "low", "high", "unit", "rows", "size", "version", "note")
MEANING = {
    "hypergradient": "Who is right: the error of each hypergradient beside a dense truth in float64",
    "step": "One outer step of the paper's problem, warm",
    "growth": "How it grows, with the exponents of the best fits",
    "race": "The default solver, untuned and to its own end, against the best of a grid",
    "sweep": "32 step sizes in one program, and one by one",
    "cold": "The first second, in fresh processes",
    "load": "With the machine busy",
}


def write(rows: list[Row], folder: Path, lead: str) -> None:
    """bench.csv, bench.png and bench.html."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "bench.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    blocks: list[Any] = []
    if figure := drawn(rows):
        figure.savefig(folder / "bench.png", dpi=120)
        blocks.append(Picture("Times and growth", figure))
    for part, meaning in MEANING.items():
        own = [r for r in rows if r["part"] == part]
        used = [column for column in COLUMNS[1:] if any(r.get(column) not in (None, "") for r in own)]
        if own:
            blocks.append(Rows(meaning, [{column: r.get(column) for column in used} for r in own]))
    note = "Medians of rounds in which all contenders take turns, with quartiles; ratios are taken within a round."
    write_page(folder / "bench.html", "proxbi: benchmark", lead, [Text("", [note]), *blocks])
    plt.close("all")


def drawn(rows: list[Row]) -> Any:
    """The contenders, with the floors as lines, and the growth, each size in units of its first; None without both."""
    matplotlib.use("Agg")
    panels = {
        _contenders: [r for r in rows if r["part"] == "step" and r["what"] == "time"],
        _growth: [r for r in rows if r["part"] == "growth" and "size" in r and r["unit"] == "ms"],
    }
    panels = {draw: own for draw, own in panels.items() if own}
    if not panels:
        return None
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4), layout="constrained", squeeze=False)
    for (draw, own), where in zip(panels.items(), axes[0], strict=True):
        draw(where, own)
    return figure


def _contenders(axes: Any, rows: list[Row]) -> None:
    timed = sorted((r for r in rows if not r["name"].startswith("floor")), key=lambda r: -r["median"])
    names = [r["name"] for r in timed]
    colors = ["tab:blue" if name == OURS else "tab:gray" for name in names]
    spread = [[r["median"] - r["low"] for r in timed], [r["high"] - r["median"] for r in timed]]
    axes.barh(names, [r["median"] for r in timed], xerr=spread, color=colors)
    for r, style in zip((r for r in rows if r["name"].startswith("floor")), ("--", ":"), strict=False):
        axes.axvline(r["median"], color="tab:red", linestyle=style, label=r["name"])
    axes.set_xscale("log")
    axes.set_xlabel("ms for one outer step")
    axes.set_title(f"{rows[0]['rows']:,} rows x 784 features, 10 classes")
    axes.legend()


def _growth(axes: Any, rows: list[Row]) -> None:
    for what in dict.fromkeys(r["what"] for r in rows):
        own = [r for r in rows if r["what"] == what]
        sizes, times = [r["size"] for r in own], [r["median"] for r in own]
        label = f"{what.replace('_', ' ')}: exponent {exponent(sizes, times):.2f}"
        axes.loglog([s / sizes[0] for s in sizes], [t / times[0] for t in times], "o-", label=label)
    axes.set_xlabel("size, over the smallest")
    axes.set_ylabel("time, over the first")
    axes.set_title("Growth")
    axes.legend()
