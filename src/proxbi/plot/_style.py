"""The look that all figures share."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#6b6b6b",
)
"""Okabe and Ito's palette: distinguishable with any kind of colour vision, and in print."""


def figure(width: float, height: float) -> "Figure":
    """An empty figure that belongs to no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'proxbi[plot]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def open_frame(*all_axes: Any) -> None:
    """Take away the lines above and to the right of the axes: they carry nothing."""
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
