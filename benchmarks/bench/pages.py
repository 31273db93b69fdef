"""What was measured as a table (CSV), a picture and a page (HTML)."""

import csv
from pathlib import Path
from typing import Any

from bench.environments import OURS
from bench.parts import Row, exponent
from proxbi.report import Curve, Picture, Rows, Text, lines, svg, write_page
from proxbi.report.markup import Svg, number
from proxbi.report.svg import Mark, intervals

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
    """bench.csv, bench.svg and bench.html."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "bench.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    blocks: list[Any] = []
    if charts := drawn(rows):
        (folder / "bench.svg").write_text(svg.file(charts), encoding="utf-8")
        blocks.append(Picture("Times, with quartiles, beside the measured floors; and how they grow", charts))
    for part, meaning in MEANING.items():
        own = [r for r in rows if r["part"] == part]
        used = [column for column in COLUMNS[1:] if any(r.get(column) not in (None, "") for r in own)]
        if own:
            blocks.append(Rows(meaning, [{column: r.get(column) for column in used} for r in own]))
    note = "Medians of rounds in which all contenders take turns, with quartiles; ratios are taken within a round."
    write_page(folder / "bench.html", "proxbi: benchmark", lead, [Text("", [note]), *blocks])


def drawn(rows: list[Row]) -> list[Svg]:
    """The contenders, with the measured floors among them, and the growth, each size in units of its first."""
    timed = [r for r in rows if r["part"] == "step" and r["what"] == "time"]
    grown = [r for r in rows if r["part"] == "growth" and "size" in r and r["unit"] == "ms"]
    return [*([_contenders(timed)] if timed else []), *([_growth(grown)] if grown else [])]


def _contenders(rows: list[Row]) -> Svg:
    fastest_first = sorted(rows, key=lambda r: r["median"])
    marks = [Mark(r["name"], r["median"], r["low"], r["high"], strong=r["name"] == OURS) for r in fastest_first]
    shape = f"{rows[0]['rows']:,} rows x 784 features, 10 classes"
    return intervals(marks, f"ms for one outer step, {shape}", number, log=True)


def _growth(rows: list[Row]) -> Svg:
    curves = []
    for what in dict.fromkeys(r["what"] for r in rows):
        own = [r for r in rows if r["what"] == what]
        sizes, times = [r["size"] for r in own], [r["median"] for r in own]
        label = f"{what.replace('_', ' ')}: exponent {exponent(sizes, times):.2f}"
        curves.append(Curve(label, [s / sizes[0] for s in sizes], [t / times[0] for t in times], dots=True))
    return lines(curves, "size, over the smallest", "time, over the first", log=True, log_x=True, title="Growth")
