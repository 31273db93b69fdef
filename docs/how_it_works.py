"""Draws docs/how-it-works.png: one run of the default solver, step by step.

python docs/how_it_works.py

The problem is the README's, without its box: ridge regression with one penalty for each weight.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from proxbi import Problem, minimize

matplotlib.use("Agg")
from matplotlib import pyplot as plt

jax.config.update("jax_enable_x64", True)
ACCEPTED, REJECTED = "#1b6ca8", "#c0392b"


def lower(x: jax.Array, y: jax.Array, data: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean((data["Z"][:40] @ y - data["t"][:40]) ** 2) / 2 + jnp.sum(jnp.exp(x) * y**2) / 2


def upper(x: jax.Array, y: jax.Array, data: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean((data["Z"][40:] @ y - data["t"][40:]) ** 2) / 2


def recorded() -> list[dict[str, Any]]:
    Z = jax.random.normal(jax.random.key(0), (80, 6))
    t = Z @ jnp.array([3.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + jax.random.normal(jax.random.key(1), (80,))
    problem = Problem(upper, lower, data={"Z": Z, "t": t})
    rows: list[dict[str, Any]] = []

    def record(row: dict[str, Any], snapshot: Any) -> None:
        state = snapshot.state
        rows.append(
            {
                "x": np.asarray(state.x),
                "calls": int(snapshot.counts.total),
                "gap": float(state.at.gap),
                "error": float(state.at.found.error),
                "radius": float(state.steering.radius),
                "trial": float(jnp.linalg.norm(state.trial.x - state.x)),
                "objective": float(state.at.found.value),  # as the solver measures it: with an error of second order
            }
        )

    minimize(problem, jnp.full(6, -3.0), jnp.zeros(6), every=1, callbacks=[record])
    return rows


def main() -> None:
    rows = recorded()
    steps = np.arange(1, len(rows) + 1)
    moved = [True] + [not np.array_equal(a["x"], b["x"]) for a, b in pairwise(rows)]
    colours = [ACCEPTED if step else REJECTED for step in moved]
    best = min(row["objective"] for row in rows)
    figure, axes = plt.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    axes[0].semilogy(steps, [max(row["objective"] - best, 1e-16) for row in rows], color="0.8", zorder=1)
    axes[0].scatter(steps, [max(row["objective"] - best, 1e-16) for row in rows], c=colours, s=18)
    axes[0].set_ylabel("objective above the best")
    axes[0].set_title(
        "blue: the trial was accepted; red: it was rejected, or the same point was evaluated again", size=10
    )
    axes[1].semilogy(steps, [row["gap"] for row in rows], color=ACCEPTED, label="|d + s|, the stationarity")
    axes[1].semilogy(steps, [max(row["error"], 1e-16) for row in rows], color="0.5", label="E, the error of d")
    axes[1].set_ylabel("slopes")
    axes[1].legend(frameon=False)
    axes[2].semilogy(steps, [row["radius"] for row in rows], color="0.5", label="the radius R")
    axes[2].semilogy(steps, [row["trial"] or np.nan for row in rows], color=ACCEPTED, label="the next trial's distance")
    axes[2].set_ylabel("lengths in x")
    axes[2].set_xlabel("step")
    axes[2].legend(frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_name("how-it-works.png"), dpi=110)


if __name__ == "__main__":
    main()
