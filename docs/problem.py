"""Draws docs/problem.png: one lower problem for each x, and what the upper level sees of it."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from proxbi.plot._style import BLUE, GREEN, GREY, ORANGE, open_frame

CHOICES, COLOURS = (-1.0, 0.1, 1.5), (BLUE, GREEN, ORANGE)
STRENGTH = 0.7


def solution(x: np.ndarray) -> np.ndarray:
    """argmin_y (y - sin x)^2 / 2."""
    return np.sin(x)


def objective(x: np.ndarray) -> np.ndarray:
    """Phi(x) = f(y*(x)) with f(y) = (y - 0.3)^2, and a little of x^2."""
    return (solution(x) - 0.3) ** 2 + 0.03 * x**2


canvas = Figure(figsize=(9, 3.6), layout="constrained")
left, right = canvas.subplots(1, 2)
y, x = np.linspace(-2.2, 2.2, 200), np.linspace(-2.2, 2.2, 400)
for choice, colour in zip(CHOICES, COLOURS, strict=True):
    at = solution(np.array(choice))
    left.plot(y, (y - at) ** 2 / 2, color=colour, lw=2, label=f"x = {choice:g}")
    left.plot(at, 0, "o", color=colour, ms=8)
    left.text(at, -0.14, f"$y^*({choice:g})$", color=colour, ha="center", va="top")
    right.plot(choice, objective(np.array(choice)), "o", color=colour, ms=8, zorder=3)
left.set(xlabel="$y$", ylabel="$g(x, y)$", ylim=(-0.4, 2.4), title="lower level: somebody reacts to $x$")
left.legend(frameon=False, loc="upper center")
right.plot(x, objective(x), color=GREY, lw=2, label=r"$\Phi(x) = f(x, y^*(x))$")
total = objective(x) + STRENGTH * np.abs(x)
right.plot(x, total, color="black", lw=2, ls="--", label=r"$\Phi(x) + h(x)$, $h = 0.7\,|x|$")
right.plot(x[np.argmin(total)], total.min(), "*", color="black", ms=14, zorder=4)
right.set(xlabel="$x$", ylim=(-0.4, 3.4), title="upper level: what the choice of $x$ leads to")
right.legend(frameon=False, loc="upper center")
open_frame(left, right)
canvas.savefig(Path(__file__).with_suffix(".png"), dpi=130)
