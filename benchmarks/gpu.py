"""Linear models on a GPU: plain products against products of blocks of rows, and one outer step of the paper's problem.

PYTHONPATH=src python3 benchmarks/gpu.py [--out folder] [--minutes 4.5] [--rows 20000 200000 2000000] [--largest]

1. A gradient and a Hessian product of softmax regression (784 features, 10 classes) by "rows" (two products as they
   come) and "blocks" (R' X as partial sums), beside one read of X, the floor.
2. One outer step of the paper's problem by "blocks", and by jaxopt where it is installed.
3. `--largest`: at the end, in a process of its own, an outer step on 50 million rows in bfloat16, and the peak of the
   memory over that of X. XLA's autotuner is switched off there: it would make copies of X.

It stops after `--minutes`, says what it left out, and writes gpu.json (and largest.json). Elsewhere than on a GPU it
runs small sizes, to show that it works.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import glm as paper
from proxbi import Problem
from proxbi.glm import design, linear_model
from proxbi.glm.problem import LOSSES, Rows, WeightedLoss

SIZES, LARGEST = (20_000, 200_000, 2_000_000), 50_000_000
SMALL = 2_000  # rows, where there is no GPU
OVERHEAD = 0.02  # seconds that one timing takes at least: many calls, so that starting them costs nothing
REPEATS = 7
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class Clock:
    """What is left of the time, and everything that was found."""

    def __init__(self, minutes: float):
        self.start, self.limit = time.perf_counter(), 60 * minutes
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[str] = []

    def has(self, what: str) -> bool:
        """Whether there is time for one thing more."""
        if time.perf_counter() - self.start < self.limit:
            return True
        self.left_out.append(what)
        return False

    @contextmanager
    def trying(self, part: str, **row: Any) -> Iterator[None]:
        """What fails is written down, and the rest goes on: which error it is depends on the version of JAX."""
        try:
            yield
        except Exception as error:
            self.add(part, **row, failed=str(error).strip().splitlines()[0][:300])

    def add(self, part: str, **row: Any) -> None:
        self.rows.append({"part": part} | row)
        shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print(f"{time.perf_counter() - self.start:6.1f} s  {part}: {', '.join(shown)}", flush=True)


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """The median and the spread of a call, after one that compiles."""
    jax.block_until_ready(call())
    begin = time.perf_counter()
    jax.block_until_ready(call())
    times = max(1, min(200, int(OVERHEAD / (time.perf_counter() - begin))))
    found = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for _ in range(times):
            last = call()
        jax.block_until_ready(last)
        found.append((time.perf_counter() - begin) / times)
    return float(np.median(found)), float(np.subtract(*np.quantile(found, [0.75, 0.25])))


# --- one gradient, one product ----------------------------------------------------------------------------------------


class Data:
    """X and what belongs to its rows; made once for a size and a dtype."""

    def __init__(self, rows: int, kind: str):
        self.X = jax.block_until_ready(paper.features(rows, DTYPES[kind]))
        self.rows = rows
        self.labels = jnp.asarray(np.random.default_rng(0).integers(0, paper.CLASSES, rows), jnp.int32)
        self.x = jnp.zeros(rows)
        self.y = 0.01 * jax.random.normal(jax.random.key(1), (paper.CLASSES, paper.FEATURES))


def products(data: Data, layout: str) -> dict[str, Callable[[], Any]]:
    """A gradient, and a Hessian product whose point is given."""
    loss = WeightedLoss(LOSSES["softmax"], Partial(jax.nn.sigmoid), Partial(lambda x: 1e-3), "train")
    rows = Rows(design(data.X, layout=layout), data.labels)
    gradient = jax.jit(lambda x, y, rows: loss.gradient(x, y, {"train": rows}))
    at_point = jax.jit(lambda y, rows: jax.nn.softmax(rows.scores(y), axis=1))(data.y, rows)

    @jax.jit
    def hessian(x: Any, v: Any, p: Any, rows: Rows) -> Any:
        s = rows.scores(v)
        return rows.pull_back(jax.nn.sigmoid(x)[:, None] * p * (s - jnp.sum(p * s, axis=1, keepdims=True)), v)

    return {
        "gradient": partial(gradient, data.x, data.y, rows),
        "Hessian product": partial(hessian, data.x, data.y, at_point, rows),
    }


def read(data: Data) -> float:
    """One read of X, with nothing to do."""
    return seconds(partial(jax.jit(lambda m, s: jnp.max(m.astype(jnp.float32) * s)), data.X, jnp.float32(1)))[0]


def one_by_one(clock: Clock, kind: str, data: Data) -> None:
    floor = read(data)
    clock.add("read", dtype=kind, rows=data.rows, ms=1e3 * floor)
    for layout in ("rows", "blocks"):
        for what, call in products(data, layout).items():
            if not clock.has(f"{what} by {layout}, {kind}, {data.rows} rows"):
                continue
            with clock.trying(what, dtype=kind, rows=data.rows, layout=layout):
                taken, spread = seconds(call)
                figures = {"ms": 1e3 * taken, "spread_ms": 1e3 * spread, "over_read": taken / floor}
                clock.add(what, dtype=kind, rows=data.rows, layout=layout, **figures)


def distance(found: Any, known: Any) -> float:
    """Relative, of the part that is off most."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, known, strict=True))


# --- one outer step ---------------------------------------------------------------------------------------------------


def problem(setting: paper.Setting) -> Problem:
    options = {"weights": jax.nn.sigmoid, "ridge": jnp.float32(2 * paper.RIDGE), "regularizer": setting.regularizer}
    return linear_model(setting.train, setting.trusted, "softmax", **options, layout="blocks")


def contenders(setting: paper.Setting, kind: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "blocks", partial(paper.outer_steps, problem(setting), *setting.start)
    if kind == "float32" and setting.rows <= paper.SMALL:
        try:
            yield "jaxopt", partial(paper.jaxopt_steps(setting), *setting.start)
        except ImportError:
            print("jaxopt is not installed: left out")


def outer_step(clock: Clock, kind: str, data: Data) -> None:
    setting, floor, known = paper.Setting(data.rows, DTYPES[kind]), paper.READS * read(data), None
    for name, call in contenders(setting, kind):
        if not clock.has(f"outer step by {name}, {kind}, {data.rows} rows"):
            continue
        with clock.trying("outer step", dtype=kind, rows=data.rows, by=name):
            found = jax.device_get(call())
            known = known or found
            taken, spread = (value / paper.STEPS for value in seconds(call))
            figures = {"ms": 1e3 * taken, "spread_ms": 1e3 * spread, "over_reads": taken / floor}
            clock.add("outer step", dtype=kind, rows=data.rows, by=name, **figures, apart=distance(found, known))


def largest(clock: Clock) -> None:
    setting = paper.Setting(LARGEST if on_gpu() else SMALL, jnp.bfloat16)
    call = partial(paper.outer_steps, problem(setting), *setting.start)
    taken, spread = (value / paper.STEPS for value in seconds(call))
    stats = jax.devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use", np.nan) / setting.train.features.nbytes
    clock.add("largest", rows=setting.rows, ms=1e3 * taken, spread_ms=1e3 * spread, peak_memory_over_X=float(peak))


def everything(clock: Clock, sizes: list[int]) -> None:
    for rows in reversed(sizes):
        for kind in DTYPES:
            data = Data(rows, kind)
            one_by_one(clock, kind, data)
            outer_step(clock, kind, data)


def one_after_the_other() -> int:
    """The rest, then the largest: each in its own process, as a process keeps the memory of a GPU while it lives."""
    command = [sys.executable, *(word for word in sys.argv if word != "--largest")]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    first = subprocess.run(command, check=False).returncode
    return first or subprocess.run([*command, "--alone"], env=os.environ | {"XLA_FLAGS": flags}, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--minutes", type=float, default=4.5, help="after which nothing new is begun")
    parser.add_argument("--largest", action="store_true", help="the 50 million rows, too")
    parser.add_argument("--alone", action="store_true", help="nothing but the 50 million rows")
    parser.add_argument("--out", type=Path, default=Path())
    arguments = parser.parse_args()
    if arguments.largest:
        sys.exit(one_after_the_other())
    sizes = sorted(arguments.rows or (SIZES if on_gpu() else (SMALL,)))
    clock = Clock(arguments.minutes)
    device = jax.devices()[0].device_kind
    print(f"{device}, JAX {jax.__version__}")
    # XLA rounds float32 products on GPUs to fewer bits by default; here it does not.
    with jax.default_matmul_precision("highest"):
        largest(clock) if arguments.alone else everything(clock, sizes)
    for what in clock.left_out:
        print(f"no time for: {what}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = {"device": device, "jax": jax.__version__, "rows": clock.rows, "left_out": clock.left_out}
    (arguments.out / ("largest.json" if arguments.alone else "gpu.json")).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
