"""Runs on batches in a process of its own: `child_rows.py kill FOLDER` is to be killed, `child_rows.py memory FOLDER`
says how much memory a million rows from a file take.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import proxbi

jax.config.update("jax_enable_x64", True)

TARGETS = np.random.default_rng(3).normal(size=(50, 2)) + 1


class DataSet:
    """Fifty rows, one by one."""

    def __len__(self) -> int:
        return len(TARGETS)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"t": TARGETS[i]}


def upper(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum((y[None] - batch["t"]) ** 2, axis=1)) / 2


def lower(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jnp.sum(((y - x)[None] + batch["t"] / 10) ** 2, axis=1)) / 2


PROBLEM = proxbi.Problem(upper, lower, proxbi.L1(0.1), proxbi.Rows(upper=DataSet(), lower=DataSet()))
SOLVER = proxbi.ProxSOBA(0.01, 0.5, batch=8)  # six batches in an epoch, and five steps between checkpoints


def solve(steps: int, **options: Any) -> proxbi.Result:
    """The run: everything but the folder is the same in every process."""
    return proxbi.minimize(PROBLEM, jnp.zeros(2), jnp.zeros(2), SOLVER, steps=steps, every=5, **options)


def kill(folder: str) -> None:
    def say(row: dict[str, Any], snapshot: Any) -> None:
        print(row["step"], flush=True)

    solve(10**9, callbacks=[proxbi.Checkpoint(folder), say], resume=folder)


ROWS, FEATURES = 1_000_000, 1_000


def memory(folder: str) -> None:
    """A lower level on a file of 4 GB, all but its first rows a hole in it: the most anonymous memory, in MB."""
    shape = (ROWS, FEATURES)
    file = np.memmap(Path(folder) / "rows", np.float32, "w+", shape=shape)
    file[:1000] = np.random.default_rng(0).normal(size=(1000, FEATURES))
    rows = {"z": np.memmap(Path(folder) / "rows", np.float32, "r", shape=shape)}
    held_out = {"z": np.asarray(file[:1000])}
    seen = [anonymous()]

    def fit(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean((batch["z"] @ y - 1) ** 2) / 2

    def penalised(x: Any, y: Any, batch: Any) -> Any:
        return fit(x, y, batch) + jnp.sum(jnp.exp(x) * y**2) / 2

    def look(row: dict[str, Any], snapshot: Any) -> None:
        seen.append(anonymous())

    problem = proxbi.Problem(fit, penalised, data=proxbi.Rows(upper=held_out, lower=rows))
    start = jnp.zeros(FEATURES, jnp.float32)
    solver = proxbi.ProxSOBA(0.01, 0.1)
    result = proxbi.minimize(problem, start, start, solver, steps=100, every=10, callbacks=[look])
    seen.append(anonymous())
    print(int(max(seen)), result.counts.rows, result.certificate_rows, flush=True)


def anonymous() -> float:
    """Of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


if __name__ == "__main__":
    {"kill": kill, "memory": memory}[sys.argv[1]](sys.argv[2])
