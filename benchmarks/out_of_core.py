"""Hyper-cleaning with a weight for each row, of rows in a file: the time of a pass beside that of a NumPy sum over the
same file, and how much memory of its own the process takes.

python benchmarks/out_of_core.py                                    # 1 million rows x 100 float16, 200 MB
python benchmarks/out_of_core.py --rows 40000000 --steps 1          # what issue 16 asks for: 8 GB
python benchmarks/out_of_core.py --solver default --steps 3

Sum and passes take turns, and the ratio is that of each round: its median, least and most are printed. Memory is
`RssAnon`: pages of a mapped file are the system's, which takes them back when it needs them.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import AID, CG, GradientDescent, MemmapRows, NegativeCappedL1, ProxBiO, minimize
from proxbi.cleaning import hyper_cleaning
from proxbi.datasets import Labelled

CLASSES, WRONG, TRUSTED = 2, 0.2, 10_000
CHUNK = 100_000  # rows that are made, or summed, at a time


def make(path: Path, rows: int, features: int) -> None:
    """Clouds around two centres; a fifth of the labels are wrong."""
    Z = np.lib.format.open_memmap(path / "features.npy", "w+", np.float16, (rows, features))
    t = np.lib.format.open_memmap(path / "labels.npy", "w+", np.uint8, (rows,))
    for first in range(0, rows, CHUNK):
        draw = np.random.default_rng([0, first])
        own = slice(first, min(first + CHUNK, rows))
        count = own.stop - own.start
        truth = draw.integers(CLASSES, size=count)
        Z[own] = draw.standard_normal((count, features), np.float32) + 0.3 * (2 * truth[:, None] - 1)
        t[own] = np.where(draw.random(count) < WRONG, 1 - truth, truth)
    Z.flush()
    t.flush()


class Memory:
    """The most memory of its own that the process had, in bytes."""

    def __init__(self) -> None:
        self.most, self._stop = 0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, anonymous())

    def end(self) -> int:
        self._stop.set()
        return self.most


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - start


def in_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each in every round. All take turns: what others do on this machine meets all of them alike."""
    for work in works.values():
        seconds(work)  # compiles, and fills the page cache as far as it goes
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(seconds(work))
    return taken


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 2), "least": round(min(values), 2), "most": round(max(values), 2)}


def numpy_sum(Z: np.ndarray) -> float:
    """Over the file, in the precision that the solvers compute in."""
    return float(sum(Z[first : first + CHUNK].sum(dtype=np.float32) for first in range(0, len(Z), CHUNK)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--features", type=int, default=100)
    options.add_argument("--steps", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3, help="in which sums and passes take turns")
    options.add_argument("--solver", choices=["proxbio", "default"], default="proxbio")
    options.add_argument("--folder", type=Path, default=None, help="for the files, which are kept there")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="proxbi-rows-"))
    folder.mkdir(exist_ok=True, parents=True)
    if not (folder / "labels.npy").exists():
        make(folder, given.rows, given.features)
    Z, t = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("features", "labels"))
    gold = Labelled(np.array(Z[:TRUSTED], np.float32), np.array(t[:TRUSTED]).astype(np.int32))
    before, memory = anonymous(), Memory()
    problem = hyper_cleaning(MemmapRows((Z, t)), gold, 1e-3, NegativeCappedL1(1e-9, 10.0), preconditioned=False)
    x, y = jnp.zeros(len(Z), jnp.float32), jnp.zeros((CLASSES, given.features), jnp.float32)
    vector = x.nbytes
    gradient = jax.jit(lambda x, y: problem.grad_lower(x, y))
    product = jax.jit(lambda x, y: problem.hvp(x, y)(y))
    cross = jax.jit(lambda x, y: problem.cross(x, y)(y))
    told: dict[str, object] = {"rows": len(Z), "megabytes on disk": round(Z.nbytes / 1e6)}
    works: dict[str, Callable[[], object]] = {
        "NumPy sum": lambda: numpy_sum(Z),
        "gradient": lambda: gradient(x, y),
        "Hessian product": lambda: product(x, y),
        "cross product": lambda: cross(x, y),
    }
    taken = in_turns(works, given.rounds)
    for name, each in taken.items():
        told[f"seconds of a {name}"] = spread(each)
        pairs = zip(taken["NumPy sum"], each, strict=True)
        told[f"speed of a {name}, in NumPy sums"] = spread([base / own for base, own in pairs])
    passes = memory.most - before
    told["megabytes of memory, passes alone"] = round(passes / 1e6)
    solver = None
    if given.solver == "proxbio":
        solver = ProxBiO(AID(GradientDescent(1.0, steps=3), CG(3)), step_size=100.0)
    start = time.perf_counter()
    result = minimize(problem, x, y, solver, steps=given.steps, every=1, throw=False)
    told[f"seconds of {result.steps} steps"] = round(time.perf_counter() - start, 1)
    told["status"], told["objective"] = result.status.name, result.objective
    most = memory.end() - before
    told["megabytes of memory"] = round(most / 1e6)
    told["megabytes beside 15 vectors like x"] = round((most - 15 * vector) / 1e6)
    told["a vector like x, megabytes"] = round(vector / 1e6, 1)
    told["memory in vectors like x"] = round(most / vector, 1)
    print(json.dumps(told, indent=2))
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
