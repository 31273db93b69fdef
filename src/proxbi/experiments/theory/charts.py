"""Charts of the theory: the potential, the rates, the complexity."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from proxbi.report import Curve, lines
from proxbi.report.markup import Svg

Row = dict[str, Any]
RESOLVED = 1e-9  # of a required decrease: rounding hides smaller ones
SMALLEST = 1e-60  # of a gap that is shown
REFERENCE = {"accelerated": (3.5, 2.5, "κ³·⁵ ln κ", "κ²·⁵ ln κ"), "plain": (4.0, 3.0, "κ⁴", "κ³")}
"""For each lower loop, the orders of the theory: of the worst case, and of this problem; and their names."""
STEP = "outer step k"


def potential(rows: list[Row]) -> list[Svg]:
    """H_k - min(Phi + h) for every kappa, with the sharper and (dashed) the paper's constants; and the share of each
    decrease that Proposition 1 requires: a violation would be above 1.
    """
    gaps, shares = [], []
    for colour, (kappa, of_kappa) in enumerate(_groups(rows, "kappa")):
        for form, run in _groups(of_kappa, "form"):
            paper = form == "paper"
            look = colour, int(paper)
            name = "" if paper else f"κ = {kappa:g}"
            resolved = [row for row in run if row["required"] > RESOLVED]
            required = [row["required"] / row["decrease"] for row in resolved]
            gaps.append(Curve(name, [row["step"] + 1 for row in run], [row["gap"] for row in run], *look))
            shares.append(Curve(name, [row["step"] + 1 for row in resolved], required, *look))
    step = f"{STEP} + 1"
    return [
        lines(gaps, step, "H(x, y) − min(Φ + h)", log=True, log_x=True, title="Potential"),
        lines(shares, step, "required / actual decrease of H", log_x=True, level=1.0, title="Proposition 1"),
    ]


def rates(dial: list[Row], beyond: list[Row]) -> list[Svg]:
    """Theorem 2 in three charts: power laws, a geometric rate, and digits that multiply (or not)."""
    sublinear, linear, superlinear = list[Curve](), list[Curve](), list[Curve]()
    for colour, (q, run) in enumerate(_groups(dial, "q")):
        steps, gap = np.array([row["step"] for row in run]), np.array([row["gap"] for row in run])
        fitted, curves = run[0]["fitted"], sublinear if q > 2 else linear
        tail = steps >= steps[-1] / (10 if q > 2 else 2)
        x = np.log(steps[tail]) if q > 2 else steps[tail]
        offset = np.mean(np.log(gap[tail]) - fitted * x)
        curves.append(Curve(_slope(q, fitted), steps, gap, colour, 0))
        curves.append(Curve("", steps[tail], np.exp(fitted * x + offset), 5, 2))
    chosen = [row for row in beyond if row["h"] == "|x|^1.5"]
    for solve, run in _groups(chosen, "lower solve"):
        shown = [row for row in run if row["gap"] > SMALLEST]
        name, gaps = f"κ = {run[0]['kappa']:g}, {solve}", [row["gap"] for row in shown]
        superlinear.append(Curve(name, [row["step"] for row in shown], gaps, dots=True))
    gap_name = "H(x, y) − H*"
    return [
        lines(sublinear, STEP, gap_name, log=True, log_x=True, title="θ < 1/2: power law"),
        lines(linear, STEP, gap_name, log=True, title="θ = 1/2: linear"),
        lines(superlinear, STEP, gap_name, log=True, title="θ = 2/3: superlinear only if exact"),
    ]


def _slope(q: float, fitted: float) -> str:
    if q == 2:
        return f"factor {np.exp(fitted):.4f} per step"
    return f"θ = 1/{q:g}: slope −{-fitted:.3f} (theory −{q / (q - 2):.4g})"


def complexity(rows: list[Row], runs: list[Row]) -> list[Svg]:
    """Lower steps to |G| <= eps against kappa, measured and (dashed) with the paper's T and beta, beside the orders of
    the theory; and what acceleration saves.
    """
    work, measured = list[Curve](), {}
    for colour, (inner, of_loop) in enumerate(_groups(rows, "lower loop")):
        worst, here, *names = REFERENCE[inner]
        kappa = np.array([row["kappa"] for row in of_loop], float)
        factor = np.log(8 * (1 + kappa)) if inner == "accelerated" else 1.0
        implied, counted = ("the paper's T and β", "implied lower steps"), ("measured", "lower steps")
        for dash, power, order, (what, column) in zip((1, 0), (worst, here), names, (implied, counted), strict=True):
            steps = np.array([row[column] for row in of_loop], float)
            law = kappa**power * factor
            work.append(Curve(f"{inner}, {what}: {order}", kappa, steps, colour, dash, dots=True))
            work.append(Curve("", kappa, law * steps[-1] / law[-1], 5, 2))
        measured[inner] = steps
    for place, (_, of_loop) in enumerate(_groups(runs, "lower loop")):
        spots = [row["kappa"] for row in of_loop], [row["run"] for row in of_loop]
        work.append(Curve("" if place else "the paper's T and β, run", *spots, 3, 0, dots=True))
    ratio = measured["accelerated"] / measured["plain"]
    law = kappa**-0.5 * np.log(8 * (1 + kappa))
    saved = [
        Curve("measured", kappa, ratio, 2, 0, dots=True),
        Curve("κ⁻⁰·⁵ ln(8 (1 + κ))", kappa, law * ratio[-1] / law[-1], 5, 2),
    ]
    axis = "condition number κ"
    return [
        lines(work, axis, "lower steps to |G| ≤ ε", log=True, log_x=True, title="Complexity"),
        lines(saved, axis, "lower steps, accelerated / plain", log=True, log_x=True, title="What acceleration saves"),
    ]


def _groups(rows: list[Row], key: str) -> Iterable[tuple[Any, list[Row]]]:
    """Rows by the value of `key`, in the order in which the values first appear."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found.items()
