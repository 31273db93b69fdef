"""What a call of the default solver costs beside the products it is made of, for y of 1e5 and 1e6 entries.

python benchmarks/large.py [--only image] [--rounds 3] [--json rows.json]

entries   an elementwise lower level: as cheap as a product with g_yy can be
bands     a signal with penalties on its first and second differences: g_yy is banded
image     320 x 320, noisy, a third of it missing, with a penalty for each of four bands of differences

Times are taken in turns, in one process, and their medians printed: of one product with g_yy, of one pass over a vector
like y (read and written once), and of one oracle call of the default solver, which is its run time, without
compilation, over all of its calls. A call is to cost no more than 3 products and 15 passes, on two idle cores; and the
image is to converge. Where the machine is busy, all three times grow, not always alike.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from proxbi import Problem, Result, minimize

jax.config.update("jax_enable_x64", True)
MOST_PRODUCTS, MOST_PASSES = 3, 15
REPEATED = 50  # products and passes in one compiled loop, so that its start costs nothing
STEPS = {100_000: 1000, 1_000_000: 4}  # a few are enough for the time of a call
Data = dict[str, jax.Array]


class Case(NamedTuple):
    name: str
    problem: Problem
    x0: jax.Array
    y0: jax.Array
    steps: int = 1000


# Problems: functions of data, as a user writes them.


def entries_lower(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    off = y - data["noisy"]
    return jnp.sum(jnp.sqrt(1 + off**2)) + jnp.exp(x[0]) * jnp.sum(y**2) / 2 + x[1] * jnp.sum(y)


def bands_lower(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    first = y[1:] - y[:-1]
    second = first[1:] - first[:-1]
    rough = jnp.stack([jnp.sum(first**2), jnp.sum(second**2)])
    return jnp.sum((y - data["noisy"]) ** 2) / 2 + jnp.dot(jnp.exp(x), rough) / 2


def image_lower(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    seen = data["seen"] * (y - data["noisy"])
    down, across = (
        [jnp.sum((y[k:] - y[:-k]) ** 2) for k in (1, 4)],
        [jnp.sum((y[:, k:] - y[:, :-k]) ** 2) for k in (1, 4)],
    )
    return jnp.sum(seen**2) / 2 + jnp.dot(jnp.exp(x), jnp.stack(down + across)) / 2


def distance(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    return jnp.mean((y - data["clean"]) ** 2) / 2


def signal(size: int) -> Data:
    t = np.linspace(0.0, 20.0, size)
    clean = np.sin(t) + np.sign(np.sin(3 * t))
    return {"clean": jnp.asarray(clean), "noisy": jnp.asarray(clean + np.random.default_rng(0).normal(size=size))}


def picture(side: int) -> Data:
    u, v = np.meshgrid(*2 * [np.linspace(0.0, 1.0, side, endpoint=False)])
    clean = np.sin(6 * np.pi * u) * np.cos(4 * np.pi * v) + ((u - 0.4) ** 2 + (v - 0.6) ** 2 < 0.05)
    rng = np.random.default_rng(0)
    arrays = {
        "clean": clean,
        "noisy": clean + 0.3 * rng.normal(size=clean.shape),
        "seen": rng.random(clean.shape) > 0.3,
    }
    return {name: jnp.asarray(array, float) for name, array in arrays.items()}


def cases() -> list[Case]:
    found = []
    for size, steps in STEPS.items():
        data, y0 = signal(size), jnp.zeros(size)
        found.append(Case(f"entries {size:.0e}", Problem(distance, entries_lower, data=data), jnp.zeros(2), y0, steps))
        found.append(Case(f"bands {size:.0e}", Problem(distance, bands_lower, data=data), jnp.zeros(2), y0, steps))
    image = Problem(distance, image_lower, data=picture(320))
    found.append(Case("image 102,400", image, jnp.full(4, -2.0), jnp.zeros((320, 320))))
    return found


# Times.


def seconds(compiled: Callable[..., Any], *arguments: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(compiled(*arguments))
    return (time.perf_counter() - begin) / REPEATED


@jax.jit
def products(problem: Problem, x: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    hvp = problem.hvp(x, y)
    return jax.lax.fori_loop(0, REPEATED, lambda _, at: hvp(at), v)


@jax.jit
def passes(v: jax.Array, factor: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, REPEATED, lambda _, at: factor * at, v)


def solved(case: Case) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minimize(case.problem, x0=case.x0, y0=case.y0, steps=case.steps, throw=False)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    at = (case.problem, case.x0, case.y0, jnp.ones_like(case.y0))
    factor = jnp.asarray(0.5)
    hvps, scans, calls = [], [], []
    for number in range(rounds + 1):
        hvps.append(seconds(products, *at))
        scans.append(seconds(passes, at[-1], factor))
        result = solved(case)
        calls.append(result.seconds.run / result.counts.total)
        if number == 0:  # compilation
            hvps.clear(), scans.clear(), calls.clear()
    hvp, scan, call = median(hvps), median(scans), median(calls)
    return {
        "case": case.name,
        "hvp_ms": 1e3 * hvp,
        "pass_ms": 1e3 * scan,
        "call_ms": 1e3 * call,
        "allowed_ms": 1e3 * (MOST_PRODUCTS * hvp + MOST_PASSES * scan),
        "holds": call <= MOST_PRODUCTS * hvp + MOST_PASSES * scan,
        "status": result.status.name,
        "steps": result.steps,
        "calls": int(result.counts.total),
        "seconds": result.seconds.run,
        "objective": result.objective,
    }


HEADER = "case             hvp ms   pass ms   call ms  allowed  holds  status      steps   calls  seconds   objective"


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['case']:14s}{row['hvp_ms']:9.3f}{row['pass_ms']:10.3f}{row['call_ms']:10.3f}{row['allowed_ms']:9.3f}  "
        f"{'yes' if row['holds'] else 'NO':5s}  {row['status']:10s}{row['steps']:7d}{row['calls']:8d}"
        f"{row['seconds']:9.2f}{row['objective']:12.6g}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(HEADER)
    for case in cases():
        if arguments.only in case.name:
            rows.append(measure(case, arguments.rounds))
            print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
