"""Linear models on a GPU: the kernel that reads X once, checked, and timed against plain products and split ones.

PYTHONPATH=src python3 benchmarks/gpu.py [--out folder] [--minutes 4.5] [--rows 20000 200000 2000000] [--largest]

1. The kernel against NumPy in float64: gradients and Hessian products of all losses, 20,011 rows.
2. How it is best cut into tiles, at the largest number of rows that is not over 2 million.
3. A gradient and a Hessian product of softmax regression (784 features, 10 classes) by "rows" (two products as they
   come), "blocks" (split) and "kernel", beside one read of X, the floor.
4. One outer step of the paper's problem by "blocks" and "kernel", and by jaxopt where it is installed.
5. `--largest`: at the end, in a process of its own, an outer step on 50 million rows in bfloat16, and the peak of the
   memory over that of X. XLA's autotuner is switched off there: it would make copies of X.

It stops after `--minutes`, says what it left out, and writes gpu.json (and largest.json). Elsewhere than on a GPU it runs
small sizes, the checks by Pallas' interpreter, to show that it works.
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
from proxbi.glm import Linear, design, kernel, linear_model
from proxbi.glm.problem import LOSSES, Rows, WeightedLoss

SIZES, LARGEST = (20_000, 200_000, 2_000_000), 50_000_000
SMALL = 2_000  # rows, where there is no GPU
ODD = 20_011  # rows: a prime, so that the last tile is not full
OVERHEAD = 0.02  # seconds that one timing takes at least: many calls, so that starting them costs nothing
REPEATS = 7
CLOSE = 1e-5  # what the issue asks of float32
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
Tiling = kernel.Tiling
TILINGS = {
    "float32": [
        Tiling(16, 64, 4, 264, True),
        Tiling(16, 32, 4, 264, True),
        Tiling(16, 64, 8, 132, True),
        Tiling(32, 64, 8, 132, True),
        Tiling(16, 64, 4, 264, False),
        Tiling(32, 64, 4, 264, False),
        Tiling(64, 64, 8, 132, False),
    ],
    "bfloat16": [
        Tiling(16, 64, 4, 264, True),
        Tiling(32, 64, 8, 132, True),
        Tiling(32, 64, 4, 264, True),
        Tiling(64, 64, 8, 132, True),
        Tiling(64, 64, 4, 264, False),
    ],
}


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


# --- 1. is it right ---------------------------------------------------------------------------------------------------


def exact(name: str, draw: dict[str, Any]) -> tuple[Any, Any]:
    """The gradient and the Hessian product of the weighted loss, by NumPy in float64."""
    X, w = (np.asarray(draw[k], "float64") for k in ("X", "w"))
    scores, directions = (X @ np.asarray(at.weights, "float64").T + np.asarray(at.bias, "float64") for at in draw["at"])
    t = np.eye(scores.shape[1])[draw["t"]] if name == "softmax" else np.asarray(draw["t"], "float64")
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = {"softmax": p / p.sum(axis=1, keepdims=True), "logistic": 1 / (1 + np.exp(-scores)), "squared": scores}[name]
    curved = {
        "softmax": lambda s: p * (s - np.sum(p * s, axis=1, keepdims=True)),
        "logistic": lambda s: p * (1 - p) * s,
        "squared": lambda s: s,
    }[name](directions)
    return tuple((r.T @ X, r.sum(axis=0)) for r in (w[:, None] * (p - t), w[:, None] * curved))


def drawn(name: str, rows: int, features: int, dtype: Any) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    outputs = {"softmax": 10, "logistic": 3, "squared": 1}[name]
    targets = draw.integers(0, outputs, rows) if name == "softmax" else draw.uniform(size=(rows, outputs))
    at = [
        Linear(*(jnp.asarray(draw.normal(size=s), jnp.float32) for s in ((outputs, features), outputs))) for _ in "yv"
    ]
    return {
        "X": jnp.asarray(draw.normal(size=(rows, features)) / np.sqrt(features), dtype),
        "w": jnp.asarray(draw.uniform(size=rows), jnp.float32),
        "t": jnp.asarray(targets, jnp.int32 if name == "softmax" else jnp.float32),
        "at": at,
    }


def check(clock: Clock) -> None:
    rows, features = (ODD, 784) if on_gpu() else (77, 40)
    for kind, dtype in DTYPES.items():
        for name, loss in LOSSES.items():
            if not clock.has(f"check of {name}, {kind}"):
                continue
            draw = drawn(name, rows, features, dtype)
            y, v = draw["at"]
            slopes = Partial(lambda loss, t, w, s: w[:, None] * loss.slope(s, t), loss, draw["t"], draw["w"])
            curvature = loss.curvature(draw["X"].astype(jnp.float32) @ y.weights.T + y.bias, draw["t"])
            curved = Partial(lambda of, w, s: w[:, None] * of(s), curvature, draw["w"])
            for what, at, rowwise, known in zip(
                ("gradient", "Hessian product"), (y, v), (slopes, curved), exact(name, draw), strict=True
            ):
                call = jax.jit(partial(kernel.one_read, draw["X"], rows, interpret=not on_gpu()))
                with clock.trying("check", loss=name, dtype=kind, what=what):
                    error = distance(call(at.weights, at.bias, rowwise), known)
                    clock.add("check", loss=name, dtype=kind, what=what, error=error, right=error < CLOSE)


def distance(found: Any, known: Any) -> float:
    """Relative, of the part that is off most."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, known, strict=True))


# --- 2. and 3. one gradient, one product ------------------------------------------------------------------------------


class Data:
    """X and what belongs to its rows; made once for a size and a dtype."""

    def __init__(self, rows: int, kind: str):
        self.X = jax.block_until_ready(paper.features(rows, DTYPES[kind]))
        self.rows = rows
        self.labels = jnp.asarray(np.random.default_rng(0).integers(0, paper.CLASSES, rows), jnp.int32)
        self.x = jnp.zeros(rows)
        self.y = 0.01 * jax.random.normal(jax.random.key(1), (paper.CLASSES, paper.FEATURES))

    def loss(self) -> WeightedLoss:
        return WeightedLoss(LOSSES["softmax"], Partial(jax.nn.sigmoid), Partial(lambda x: 1e-3), "train")


def products(data: Data, layout: str) -> dict[str, Callable[[], Any]]:
    """A gradient, and a Hessian product whose point is given."""
    rows, loss = Rows(design(data.X, layout=layout), data.labels), data.loss()
    gradient = jax.jit(lambda x, y, rows: loss.gradient(x, y, {"train": rows}))
    curvature = jax.jit(lambda y, rows: LOSSES["softmax"].curvature(rows.scores(y), rows.targets))(data.y, rows)

    @jax.jit
    def hessian(x: Any, v: Any, curvature: Any, rows: Rows) -> Any:
        return rows.through(v, Partial(lambda of, x, s: jax.nn.sigmoid(x)[:, None] * of(s), curvature, x))

    return {
        "gradient": partial(gradient, data.x, data.y, rows),
        "Hessian product": partial(hessian, data.x, data.y, curvature, rows),
    }


def cut(clock: Clock, kind: str, data: Data) -> None:
    """Every tiling on one Hessian product; the best is what the rest of this run uses."""
    best, fastest = None, np.inf
    for tiling in TILINGS[kind]:
        if not clock.has(f"tiling {tuple(tiling)}, {kind}"):
            continue
        use(kind, tiling)
        with clock.trying("tiling", dtype=kind, tiling=str(tuple(tiling))):
            taken, spread = seconds(products(data, "kernel")["Hessian product"])
            clock.add("tiling", dtype=kind, tiling=str(tuple(tiling)), ms=1e3 * taken, spread_ms=1e3 * spread)
            if taken < fastest:
                best, fastest = tiling, taken
    use(kind, best or TILINGS[kind][0])
    clock.add("tiling", dtype=kind, best=str(tuple(best or TILINGS[kind][0])))


def use(kind: str, tiling: Tiling) -> None:
    setattr(kernel, kind.upper(), tiling)
    jax.clear_caches()


def read(data: Data) -> float:
    """One read of X, with nothing to do."""
    return seconds(partial(jax.jit(lambda m, s: jnp.max(m.astype(jnp.float32) * s)), data.X, jnp.float32(1)))[0]


def one_by_one(clock: Clock, kind: str, data: Data) -> None:
    floor = read(data)
    clock.add("read", dtype=kind, rows=data.rows, ms=1e3 * floor)
    for layout in ("rows", "blocks", "kernel"):
        for what, call in products(data, layout).items():
            if not clock.has(f"{what} by {layout}, {kind}, {data.rows} rows"):
                continue
            with clock.trying(what, dtype=kind, rows=data.rows, layout=layout):
                taken, spread = seconds(call)
                figures = {"ms": 1e3 * taken, "spread_ms": 1e3 * spread, "over_read": taken / floor}
                clock.add(what, dtype=kind, rows=data.rows, layout=layout, **figures)


# --- 4. and 5. one outer step -----------------------------------------------------------------------------------------


def problem(setting: paper.Setting, layout: str) -> Problem:
    options = {"weights": jax.nn.sigmoid, "ridge": jnp.float32(2 * paper.RIDGE), "regularizer": setting.regularizer}
    return linear_model(setting.train, setting.trusted, "softmax", **options, layout=layout)


def contenders(setting: paper.Setting, kind: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    for layout in ("blocks", "kernel"):
        yield layout, partial(paper.outer_steps, problem(setting, layout), *setting.start)
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
    call = partial(paper.outer_steps, problem(setting, "kernel"), *setting.start)
    taken, spread = (value / paper.STEPS for value in seconds(call))
    stats = jax.devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use", np.nan) / setting.train.features.nbytes
    clock.add("largest", rows=setting.rows, ms=1e3 * taken, spread_ms=1e3 * spread, peak_memory_over_X=float(peak))


def everything(clock: Clock, sizes: list[int]) -> None:
    check(clock)
    for kind in DTYPES:
        cut(clock, kind, Data(sizes[-1], kind))
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
