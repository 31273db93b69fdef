"""Linear hyper-cleaning of MNIST on batches: the upper objective at the exact y*(x), against row derivatives.

    python benchmarks/stochastic_cleaning.py [--rows 20000] [--trusted 5000] [--noise 0.4] [--data FOLDER]

The default solver on all rows runs first; then each solver on batches, with nothing tuned, on a quarter of its rows.
Points are judged by f(x, y*(x)) with y* solved for on all rows, which is not counted.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi import AcceleratedGradient, Box, Problem, ProxF2SA, ProxSABA, ProxSOBA, ProxSRBA, Rows, minimize
from proxbi.datasets import mnist
from proxbi.datasets.handwritten import standardize

RIDGE, BOUND, CLASSES = 1e-2, 5.0, 10
FULL_STEPS = 60  # of the default solver: it ends as CONVERGED before that, or its last point counts
LOOKS = 40


def entropy(y: Array, batch: Any) -> Array:
    scores = batch["z"] @ y
    picked = jnp.take_along_axis(scores, batch["t"][:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(scores, axis=1) - picked


def upper(x: Array, y: Array, batch: Any) -> Array:
    return jnp.mean(entropy(y, batch))


def lower(x: Array, y: Array, batch: Any) -> Array:
    return jnp.mean(jax.nn.sigmoid(x[batch.index]) * entropy(y, batch)) + RIDGE * jnp.sum(y**2)


def made(rows: int, trusted: int, noise: float, folder: str | None) -> tuple[Problem, np.ndarray]:
    """The problem, and which labels are wrong."""
    data, draw = mnist(folder).train, np.random.default_rng(15)
    order = draw.permutation(len(data.labels))[: rows + trusted]
    features, labels = standardize(data.features[order]), data.labels[order].copy()
    wrong = draw.random(rows) < noise
    labels[:rows] = np.where(wrong, (labels[:rows] + draw.integers(1, CLASSES, rows)) % CLASSES, labels[:rows])
    parts = {"lower": slice(rows), "upper": slice(rows, None)}
    levels = {name: {"z": features[part], "t": labels[part]} for name, part in parts.items()}
    return Problem(upper, lower, Box(-BOUND, BOUND), Rows(**levels, classes=CLASSES)), wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--trusted", type=int, default=5_000)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--data")
    asked = parser.parse_args()
    problem, wrong = made(asked.rows, asked.trusted, asked.noise, asked.data)
    width = problem.data.lower.rows["z"].shape[1]
    x0, y0 = jnp.zeros(asked.rows), jnp.zeros((width, CLASSES))
    exact = AcceleratedGradient(1e-4)

    @jax.jit
    def judged(x: Array, y: Array) -> Array:
        return problem.value_upper(x, exact.solve(problem, x, y)[0])

    def told(name: str, result: Any, seconds: float) -> float:
        value = float(judged(result.x, result.y))
        found = float(np.mean((np.asarray(result.x) < 0)[wrong])), float(np.mean((np.asarray(result.x) < 0)[~wrong]))
        rows = result.state.counts.rows
        print(
            f"{name:28} f at y* {value:.4f}, {rows / asked.rows:7.1f} passes, {result.state.counts.total:6d} calls, "
            f"{seconds:5.0f} s, weights below half: {found[0]:.0%} of wrong and {found[1]:.0%} of right labels",
            flush=True,
        )
        return value

    print(f"start: f at y* {float(judged(x0, y0)):.4f}")
    begun = time.perf_counter()
    full = minimize(problem, x0, y0, steps=FULL_STEPS, throw=False)
    told(f"default ({full.status.name})", full, time.perf_counter() - begun)
    quarter = full.state.counts.rows / 4
    steps = int(quarter / (4 * 64))
    for solver in (ProxSOBA(half_life=steps / 4), ProxSRBA(), ProxSABA(), ProxF2SA()):
        begun = time.perf_counter()

        def enough(row: dict[str, Any], snapshot: Any) -> bool:
            return row["rows"] >= quarter

        every = max(steps // LOOKS, 1)
        result = minimize(problem, x0, y0, solver, steps=steps, every=every, callbacks=[enough], throw=False)
        told(type(solver).__name__, result, time.perf_counter() - begun)


if __name__ == "__main__":
    main()
