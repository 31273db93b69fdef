"""Figures of the theory: the potential, the rates, the complexity. Rows as `experiments.theory` makes them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from proxbi.plot._style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW, figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY)


def potential(rows: list[Row]) -> "Figure":
    """Left: H_k - min(Phi + h) for every kappa, with the sharper and (dashed) the paper's constants. Right: the share
    of each decrease that Proposition 1 asks for; a violation would be above 1.
    """
    canvas = figure(10, 4.2)
    left, right = canvas.subplots(1, 2)
    for colour, (kappa, of_kappa) in zip(COLOURS, _groups(rows, "kappa"), strict=False):
        for form, line in _groups(of_kappa, "form"):
            steps, dashed = np.array([row["step"] for row in line]) + 1, form == "paper"
            style = {"color": colour, "linestyle": "--" if dashed else "-", "linewidth": 1.2 if dashed else 1.8}
            label = None if dashed else f"κ = {kappa:g}"
            left.loglog(steps, [row["gap"] for row in line], label=label, **style)
            resolved = [(k, row) for k, row in zip(steps, line, strict=True) if row["required"] > 1e-9]
            share = [row["required"] / row["decrease"] for _, row in resolved]
            right.semilogx([k for k, _ in resolved], share, **style)
    left.plot([], [], color=GREY, label="sharper constants")
    left.plot([], [], color=GREY, linestyle="--", label="the paper's constants")
    right.axhline(1, color=GREY, linewidth=1)
    right.annotate("violated above this line", (0.02, 1), xycoords=("axes fraction", "data"), xytext=(0, 4),
                   textcoords="offset points", color=GREY, fontsize=9)  # fmt: skip
    right.set_ylim(0, 1.12)
    left.set(xlabel="outer step k + 1", ylabel=r"$H(x_k, y_k) - \min\,(\Phi + h)$", title="Potential")
    right.set(xlabel="outer step k + 1", ylabel="asked for / decrease of H", title="Proposition 1")
    left.legend(frameon=False, fontsize=9)
    open_frame(left, right)
    return canvas


def rates(dial: list[Row], beyond: list[Row]) -> "Figure":
    """Theorem 2 in three pictures: power laws, a geometric rate, and digits that multiply (or not)."""
    canvas = figure(12, 4.2)
    sublinear, linear, superlinear = canvas.subplots(1, 3)
    for colour, (q, line) in zip(COLOURS, _groups(dial, "q"), strict=False):
        steps, gap = np.array([row["step"] for row in line]), np.array([row["gap"] for row in line])
        fitted, axes = line[0]["fitted"], sublinear if q > 2 else linear
        axes.plot(steps, gap, color=colour, linewidth=2.2, label=_slope_label(q, fitted))
        tail = steps >= steps[-1] / 10 if q > 2 else steps >= steps[-1] / 2
        x = np.log(steps[tail]) if q > 2 else steps[tail]
        offset = np.mean(np.log(gap[tail]) - fitted * x)
        axes.plot(steps[tail], np.exp(fitted * x + offset), color="black", linestyle=":", linewidth=1.6)
    sublinear.plot([], [], color="black", linestyle=":", label="fitted")
    linear.plot([], [], color="black", linestyle=":", label="fitted")
    sublinear.set(xscale="log", yscale="log", title="θ < 1/2: power law", xlabel="outer step k")
    linear.set(yscale="log", title="θ = 1/2: linear", xlabel="outer step k")
    looks: tuple[Row, ...] = (
        {"color": BLUE, "marker": "o", "markersize": 10, "mfc": "none"},
        {"color": GREEN, "marker": "s", "markersize": 4},
        {"color": ORANGE, "marker": "^", "markersize": 5},
    )
    chosen = [row for row in beyond if row["h"] == "|x|^1.5"]
    for look, (solve, line) in zip(looks, _groups(chosen, "lower solve"), strict=False):
        shown = [(row["step"], row["gap"]) for row in line if row["gap"] > 1e-60]
        superlinear.semilogy(*zip(*shown, strict=True), label=f"κ = {line[0]['kappa']:g}, {solve}", **look)
    superlinear.set(title="θ = 2/3: superlinear only if exact", xlabel="outer step k", ylim=(1e-60, 1e3))
    for axes in (sublinear, linear, superlinear):
        axes.set_ylabel(r"$H(x_k, y_k) - H^*$")
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    sublinear.set_ylim(top=1e3)
    open_frame(sublinear, linear, superlinear)
    return canvas


def _slope_label(q: float, fitted: float) -> str:
    if q == 2:
        return f"θ = 1/2: factor {np.exp(fitted):.4f} a step"
    return f"θ = 1/{q:g}: slope −{-fitted:.3f} (theory −{q / (q - 2):.4g})"


def complexity(rows: list[Row], runs: list[Row]) -> "Figure":
    """Left: lower steps to |G| <= eps against kappa, measured and (dashed) with the paper's T and beta, beside the
    orders of the theory. Right: what acceleration saves.
    """
    canvas = figure(11, 4.8)
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    reference = {"accelerated": (3.5, 2.5, BLUE, "o"), "plain": (4.0, 3.0, ORANGE, "s")}
    lines = {inner: _columns(line) for inner, line in _groups(rows, "lower loop")}
    for inner, line in lines.items():
        worst, here, colour, marker = reference[inner]
        kappa, fast = line["kappa"], inner == "accelerated"
        for name, power, note, style in (
            ("implied lower steps", worst, "the paper's T and β: flow time / β", {"linestyle": "--", "mfc": "white"}),
            ("lower steps", here, "sharper T and β, measured", {"linewidth": 2}),
        ):
            values, orders = line[name], kappa**power * (np.log(8 * (1 + kappa)) if fast else 1)
            left.loglog(kappa, values, color=colour, marker=marker, label=f"{inner}, {note}", **style)
            left.loglog(kappa, orders * values[-1] / orders[-1], color=colour, linestyle=":", linewidth=1.2)
            _beside(
                left, (kappa[-1], values[-1]), f"κ$^{{{power:g}}}${' ln κ' if fast else ''}", colour, -9 if fast else 0
            )
    left.plot([row["kappa"] for row in runs], [row["run"] for row in runs], "kx", label="the paper's T and β, run")
    left.plot([], [], color=GREY, linestyle=":", label="order of the theory, through the last point")
    kappa = lines["plain"]["kappa"]
    ratio = lines["accelerated"]["lower steps"] / lines["plain"]["lower steps"]
    law = kappa**-0.5 * np.log(8 * (1 + kappa))
    right.loglog(kappa, ratio, color=GREEN, marker="D", linewidth=2, label="measured")
    right.loglog(kappa, law * ratio[-1] / law[-1], color=GREY, linestyle=":", label=r"κ$^{-1/2}$ ln(8(1 + κ))")
    left.set(xlabel="condition number κ", ylabel="lower steps to |G| ≤ ε", title="Complexity")
    right.set(xlabel="condition number κ", ylabel="lower steps, accelerated / plain", title="What acceleration saves")
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    left.set_ylim(top=left.get_ylim()[1] * 1e3)
    right.legend(frameon=False, fontsize=9)
    open_frame(left, right)
    return canvas


def _beside(axes: Any, point: tuple[float, float], text: str, colour: str, down: int) -> None:
    """`text` to the right of a point, outside the axes if need be."""
    look = {"color": colour, "fontsize": 10, "annotation_clip": False}
    axes.annotate(text, point, xytext=(8, down), textcoords="offset points", **look)


def _columns(rows: list[Row]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows], float) for name in rows[0] if name != "lower loop"}


def _groups(rows: list[Row], key: str) -> Iterable[tuple[Any, list[Row]]]:
    """Rows by the value of `key`, in the order in which the values first appear."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found.items()
