"""What all examples share: two options, one look."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

jax.config.update("jax_enable_x64", True)  # before any array is made
if "--small" in sys.argv:  # programs that run for milliseconds: nearly all of the time is compiling
    jax.config.update("jax_disable_most_optimizations", True)
    quickly = "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quickly}".strip()

BLUE, ORANGE, GREEN, PURPLE, YELLOW, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#8a8f98"
"""Okabe and Ito's palette: distinguishable with any kind of colour vision."""
COLOURS = 128  # of a PNG: enough for every figure here, and a third of the size
NAME = Path(sys.argv[0]).stem.partition("_")[2]
FIGURES = Path(__file__).parents[1] / "docs" / "gallery"

mpl.rcParams.update(
    {
        "font.size": 10.5,
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#55595f",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e6e8eb",
        "legend.frameon": False,
        "lines.linewidth": 2,
        "image.cmap": "gray_r",
    }
)


def options(doc: str | None) -> argparse.Namespace:
    """`--small` for less data, `--out` for where the figure goes."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="less data: some seconds")
    parser.add_argument(
        "--out", type=Path, help="where the figure goes; by default the gallery, or with --small nowhere"
    )
    return parser.parse_args()


def figure(width: float = 9, height: float = 3.8) -> Figure:
    """An empty figure that belongs to no window."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def picture(axes: Any, image: Any, title: str = "", colour: str = "black", **options: Any) -> None:
    """An image without axes."""
    axes.imshow(image, **options)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9, color=colour, loc="center", fontweight="normal")


def save(canvas: Figure, given: argparse.Namespace) -> None:
    """Write the figure as a PNG."""
    path = given.out or (None if given.small else FIGURES / f"{NAME}.png")
    if path is not None:
        canvas.savefig(path, dpi=110)
        Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
