"""Figures of label cleaning."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from proxbi.plot._style import BLUE, ORANGE, figure, open_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cleaning(
    history: list[dict[str, Any]], weights: Float[np.ndarray, " rows"], wrong: Bool[np.ndarray, " rows"]
) -> "Figure":
    """Left: the objective and the stationarity against the steps. Right: the weights of rows with right and with
    wrong labels.
    """
    canvas = figure(9, 3.6)
    left, right = canvas.subplots(1, 2)
    steps = [row["step"] for row in history]
    left.plot(steps, [row["upper"] for row in history], color=BLUE)
    left.set_xlabel("outer step")
    left.set_ylabel("loss on trusted rows", color=BLUE)
    other = left.twinx()
    other.semilogy(steps, [row["stationarity"] for row in history], color=ORANGE, linestyle="--")
    other.set_ylabel("stationarity", color=ORANGE)
    left.set_title("Convergence")

    bins = np.linspace(0, 1, 41).tolist()
    for rows, colour, label in ((~wrong, BLUE, "right label"), (wrong, ORANGE, "wrong label")):
        right.hist(weights[rows], bins, color=colour, alpha=0.6, label=f"{label} ({np.sum(rows)} rows)")
    right.legend(frameon=False, loc="upper center")
    right.set_yscale("symlog", linthresh=10)
    right.set_yticks([0, 5, 10, 100, 1000], ["0", "5", "10", "100", "1000"])
    right.set_xlabel("learned weight")
    right.set_ylabel("training rows")
    right.set_title("Weights")
    left.spines["top"].set_visible(False)
    other.spines["top"].set_visible(False)
    open_frame(right)
    return canvas
