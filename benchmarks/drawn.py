"""The default solver on problems that are drawn, not chosen: does it improve on x0, and is what it says true?

python benchmarks/drawn.py [--seeds 0 1 2] [--only poisson] [--json rows.json]

Eleven kinds of problems, each with h = 0 and with three other h (`mixture` with a simplex, too), drawn anew for every
seed: data, start, a constant added to f, and, but for seed 0, the units of f, g and x (powers of ten up to three).
Nothing is set but the number of steps. Kinds and draws were fixed before the solver was run on them; none is taken out.

The truth is Phi and its gradient by dense Newton steps on g and a dense adjoint solve, in float64. Of each run it says

worse    whether the objective is above that of x0 by more than rounding
claim    true stationarity over the claimed one, the distance of -grad Phi from dh(x); above 1 is false
left     what L-BFGS-B of SciPy gains when it is started at the answer, over the gain of the run (h = 0 and boxes)
behind   how far the answer is above that of L-BFGS-B from x0, over the gain (the same)
"""

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize as scipy_minimize
from scipy.optimize import minimize_scalar

from proxbi import L1, MCP, Box, Problem, Regularizer, Simplex, Zero, minimize

jax.config.update("jax_enable_x64", True)
Array, Data = jax.Array, dict[str, Any]
LARGEST = 3  # units are 10^-3 to 10^3
NEWTON_STEPS = 60
OPTIONS = {"maxiter": 3000, "maxfun": 6000, "gtol": 1e-12, "ftol": 1e-15}


# Kinds: g, f and how data, x0 and y0 are drawn.


def table(rng: np.random.Generator, rows: int, columns: int) -> Data:
    """A table with columns that go together, some of which matter, halved."""
    mix = rng.normal(size=(columns, columns)) / columns**0.5 + np.eye(columns)
    z = rng.normal(size=(rows, columns)) @ mix
    truth = rng.normal(size=columns) * (rng.random(columns) < 0.5)
    return {"z": z, "score": z @ truth / max(1.0, np.std(z @ truth)), "noise": rng.normal(size=rows)}


def halves(array: Array) -> tuple[Array, Array]:
    half = len(array) // 2
    return array[:half], array[half:]


def huber_lower(x: Array, y: Array, d: Data) -> Array:
    off = halves(d["z"])[0] @ y - halves(d["t"])[0]
    return jnp.mean(jnp.sqrt(1 + off**2)) + jnp.sum(jnp.exp(x) * y**2) / 2


def huber_upper(x: Array, y: Array, d: Data) -> Array:
    return jnp.mean(jnp.sqrt(1 + (halves(d["z"])[1] @ y - halves(d["t"])[1]) ** 2))


def huber(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 60, 8)
    return d | {"t": d["score"] + rng.standard_t(2, size=60)}, rng.uniform(-4, 2, 8), np.zeros(8)


def poisson_lower(x: Array, y: Array, d: Data) -> Array:
    eta = halves(d["z"])[0] @ y
    return (
        jnp.mean(jnp.exp(eta) - halves(d["t"])[0] * eta)
        + jnp.exp(x[0]) * jnp.sum(y[:4] ** 2)
        + jnp.sum(jnp.exp(x[1:]) * y[4:] ** 2)
    )


def poisson_upper(x: Array, y: Array, d: Data) -> Array:
    eta = halves(d["z"])[1] @ y
    return jnp.mean(jnp.exp(eta) - halves(d["t"])[1] * eta)


def poisson(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 80, 8)
    d["z"] = d["z"] / 4
    return d | {"t": rng.poisson(np.exp(d["score"] / 2)).astype(float)}, rng.uniform(-3, 1, 5), np.zeros(8)


def weights_lower(x: Array, y: Array, d: Data) -> Array:
    loss = jax.nn.softplus(-halves(d["t"])[0] * (halves(d["z"])[0] @ y))
    return jnp.mean(jax.nn.sigmoid(x) * loss) + 0.05 * jnp.sum(y**2)


def weights_upper(x: Array, y: Array, d: Data) -> Array:
    return jnp.mean(jax.nn.softplus(-halves(d["t"])[1] * (halves(d["z"])[1] @ y))) + 1e-3 * jnp.sum(x**2)


def weights(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 60, 5)
    t = np.sign(d["score"] + 0.3 * d["noise"])
    t[:30][rng.random(30) < 0.3] *= -1
    return d | {"t": t}, rng.normal(size=30), np.zeros(5)


def kernel_matrix(a: Array, b: Array, x: Array) -> Array:
    scale = jnp.exp(x)
    gaps = (a * scale)[:, None] - (b * scale)[None]
    return jnp.exp(-jnp.sum(gaps**2, axis=-1) / 2)


def kernel_lower(x: Array, y: Array, d: Data) -> Array:
    (first, _), (t, _) = halves(d["z"]), halves(d["t"])
    gram = kernel_matrix(first, first, x[:-1]) + jnp.exp(x[-1]) * jnp.eye(len(first))
    return y @ gram @ y / 2 - t @ y


def kernel_upper(x: Array, y: Array, d: Data) -> Array:
    (first, second), (_, t) = halves(d["z"]), halves(d["t"])
    return jnp.mean((kernel_matrix(second, first, x[:-1]) @ y - t) ** 2) / 2


def kernel(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 50, 4)
    t = np.sin(d["z"][:, 0]) + 0.1 * d["noise"]
    return d | {"t": t}, np.append(rng.uniform(-2, 0.5, 4), rng.uniform(-4, 0)), np.zeros(25)


def poisoned_lower(x: Array, y: Array, d: Data) -> Array:
    moved = halves(d["z"])[0].at[:6].add(x.reshape(6, -1))
    return jnp.mean((moved @ y - halves(d["t"])[0]) ** 2) / 2 + 0.05 * jnp.sum(y**2)


def poisoned_upper(x: Array, y: Array, d: Data) -> Array:
    off = halves(d["z"])[1] @ y - halves(d["t"])[1]
    return -jnp.mean(jnp.tanh(off**2)) + 0.01 * jnp.sum(x**2)


def poisoned(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 40, 4)
    return d | {"t": d["score"] + 0.1 * d["noise"]}, 0.1 * rng.normal(size=24), np.zeros(4)


def mixture_lower(x: Array, y: Array, d: Data) -> Array:
    losses = jnp.mean((d["sources"] @ y - d["answers"]) ** 2, axis=1)
    return jnp.sum(x**2 * losses) + 0.01 * jnp.sum(y**2)


def mixture_upper(x: Array, y: Array, d: Data) -> Array:
    return jnp.mean(jnp.log1p((d["z"] @ y - d["t"]) ** 2))


def mixture(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    z, truth = rng.normal(size=(6, 20, 5)), rng.normal(size=(6, 5))
    truth[:3] = truth[0] + 0.1 * rng.normal(size=(3, 5))
    d: Data = {"sources": z, "answers": np.einsum("srf,sf->sr", z, truth)}
    own = rng.normal(size=(15, 5))
    return d | {"z": own, "t": own @ truth[0] + 0.2 * rng.normal(size=15)}, np.full(6, 1 / 6), np.zeros(5)


def features_lower(x: Array, y: Array, d: Data) -> Array:
    hidden = jnp.tanh(halves(d["z"])[0] @ x.reshape(-1, 4))
    return jnp.mean((hidden @ y - halves(d["t"])[0]) ** 2) / 2 + 0.01 * jnp.sum(y**2)


def features_upper(x: Array, y: Array, d: Data) -> Array:
    hidden = jnp.tanh(halves(d["z"])[1] @ x.reshape(-1, 4))
    return jnp.mean((hidden @ y - halves(d["t"])[1]) ** 2) / 2 + 1e-4 * jnp.sum(x**2)


def features(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 80, 5)
    return d | {"t": np.tanh(d["score"]) + 0.05 * d["noise"]}, rng.normal(size=20), np.zeros(4)


def smooth_lower(x: Array, y: Array, d: Data) -> Array:
    steps = y[1:] - y[:-1]
    tv, bends = jnp.sum(jnp.sqrt(1e-2 + steps**2)), jnp.sum((steps[1:] - steps[:-1]) ** 2)
    return jnp.sum((y - d["t"]) ** 2) / 2 + jnp.exp(x[0]) * tv + jnp.exp(x[1]) * bends


def smooth_upper(x: Array, y: Array, d: Data) -> Array:
    return jnp.mean((y - d["clean"]) ** 2) / 2


def smooth(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    clean = np.cumsum(rng.random(100) < 0.05) * rng.normal() + np.sin(np.linspace(0, 6, 100))
    return {"clean": clean, "t": clean + 0.3 * rng.normal(size=100)}, rng.uniform(-4, 1, 2), np.zeros(100)


def control_lower(x: Array, y: Array, d: Data) -> Array:
    return y @ d["stiff"] @ y / 2 - jnp.sin(d["input"] @ x) @ y + jnp.sum(jnp.log(jnp.cosh(y))) / 10


def control_upper(x: Array, y: Array, d: Data) -> Array:
    return jnp.mean((y - d["t"]) ** 2) + 1e-3 * jnp.sum(jnp.cos(3 * x) + x**2)


def control(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    basis = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    stiff = basis @ np.diag(np.logspace(-2, 4, 12)) @ basis.T
    return (
        {"stiff": stiff, "input": rng.normal(size=(12, 6)), "t": rng.normal(size=12)},
        rng.normal(size=6),
        np.zeros(12),
    )


def market_lower(x: Array, y: Array, d: Data) -> Array:
    return jnp.sum(jnp.exp(x) * y) - jnp.sum(d["wealth"] * jnp.log(y)) + d["bind"] * jnp.sum(y) ** 2 / 2


def market_upper(x: Array, y: Array, d: Data) -> Array:
    return -jnp.sum((jnp.exp(x) - d["cost"]) * y) + 0.1 * jnp.sum(x**2)


def market(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = {"wealth": rng.uniform(0.5, 2, 6), "bind": rng.uniform(0.1, 1), "cost": rng.uniform(0.2, 1, 6)}
    return d, rng.uniform(-1, 1, 6), np.ones(6)


def soft_lower(x: Array, y: Array, d: Data) -> Array:
    scores = halves(d["z"])[0] @ y.reshape(-1, 3)
    picked = jnp.sum(scores * halves(d["hot"])[0], axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - picked) + jnp.sum(jax.nn.softplus(x) * y.reshape(-1, 3) ** 2)


def soft_upper(x: Array, y: Array, d: Data) -> Array:
    scores = halves(d["z"])[1] @ y.reshape(-1, 3)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.sum(scores * halves(d["hot"])[1], axis=1))


def soft(rng: np.random.Generator) -> tuple[Data, Any, Any]:
    d = table(rng, 90, 5)
    classes = np.argmax(d["z"] @ rng.normal(size=(5, 3)) + rng.normal(size=(90, 3)), axis=1)
    return d | {"hot": np.eye(3)[classes]}, rng.uniform(-6, 0, 3), np.zeros(15)


KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "huber": (huber_lower, huber_upper, huber),
    "poisson": (poisson_lower, poisson_upper, poisson),
    "weights": (weights_lower, weights_upper, weights),
    "kernel": (kernel_lower, kernel_upper, kernel),
    "poisoned": (poisoned_lower, poisoned_upper, poisoned),
    "mixture": (mixture_lower, mixture_upper, mixture),
    "features": (features_lower, features_upper, features),
    "smooth": (smooth_lower, smooth_upper, smooth),
    "control": (control_lower, control_upper, control),
    "market": (market_lower, market_upper, market),
    "soft": (soft_lower, soft_upper, soft),
}
PENALTIES = ("none", "box", "l1", "mcp", "simplex")


# Units: x = unit_x * own x, and so on. A kind is written in its own units.


def lower_in_units(own: Callable[..., Any], x: Array, y: Array, d: Data) -> Array:
    return d["unit_g"] * own(x / d["unit_x"], y, d)


def upper_in_units(own: Callable[..., Any], x: Array, y: Array, d: Data) -> Array:
    return d["unit_f"] * (own(x / d["unit_x"], y, d) + d["constant"])


def penalty(name: str, d: Data, x: Array) -> Regularizer:
    """h, in units of f and x."""
    unit, strength = d["unit_x"], d["unit_f"] / d["unit_x"]
    match name:
        case "none":
            return Zero()
        case "box":
            return Box(jnp.minimum(x, -0.5 * unit), jnp.maximum(x, 0.5 * unit))
        case "l1":
            return L1(0.03 * strength)
        case "mcp":
            return MCP(0.03 * strength, 3.0 * unit / strength)
    return Simplex(unit)


def drawn(kind: str, h: str, seed: int) -> tuple[Problem, Array, Array]:
    lower, upper, draw = KINDS[kind]
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    data, x0, y0 = draw(rng)
    units = 10 ** np.where(seed == 0, 0, rng.uniform(-LARGEST, LARGEST, 3))
    data |= {"unit_f": units[0], "unit_g": units[1], "unit_x": units[2], "constant": rng.choice([0.0, 10.0, -1e3])}
    d = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), data)
    x = d["unit_x"] * (jnp.full(x0.shape, 1 / x0.size) if h == "simplex" else jnp.asarray(x0))
    problem = Problem(partial(upper_in_units, upper), partial(lower_in_units, lower), penalty(h, d, x), data=d)
    return problem, x, jnp.asarray(y0)


# Truth.


@partial(jax.jit, static_argnums=0)
def exactly(kind: str, d: Data, x: Array, y0: Array) -> tuple[Array, Array, Array]:
    """Phi, its gradient, and the length of the last Newton step relative to y."""
    lower, upper = partial(lower_in_units, KINDS[kind][0]), partial(upper_in_units, KINDS[kind][1])

    def newton(_: Any, y: Array) -> Array:
        step = jnp.linalg.solve(jax.hessian(lower, 1)(x, y, d), jax.grad(lower, 1)(x, y, d))
        lengths = 0.5 ** jnp.arange(30)
        values = jax.vmap(lambda t: lower(x, y - t * step, d))(lengths)
        slopes = jax.vmap(lambda t: jnp.linalg.norm(jax.grad(lower, 1)(x, y - t * step, d)))(lengths)
        here, slope = lower(x, y, d), jnp.linalg.norm(jax.grad(lower, 1)(x, y, d))
        level = here + 1e-13 * jnp.abs(here)
        good = jnp.isfinite(values) & (values <= level) & ((values < here) | (slopes <= slope))
        first = jnp.argmax(good)
        return jnp.where(good[first], y - lengths[first] * step, y)

    y = jax.lax.fori_loop(0, NEWTON_STEPS, newton, y0)
    hessian = jax.hessian(lower, 1)(x, y, d)
    last = jnp.linalg.norm(jnp.linalg.solve(hessian, jax.grad(lower, 1)(x, y, d))) / (1 + jnp.linalg.norm(y))
    value, (by_x, by_y) = jax.value_and_grad(upper, (0, 1))(x, y, d)
    v = jnp.linalg.solve(hessian, by_y)
    cross = jax.grad(lambda at: jnp.vdot(jax.grad(lower, 1)(at, y, d), jax.lax.stop_gradient(v)))(x)
    return value, by_x - cross, last


def by_lbfgsb(kind: str, problem: Problem, x: Array, y0: Array, unit: float) -> float:
    """The lowest objective that L-BFGS-B finds, from x; in units in which x is of order 1 and f as it was drawn."""
    h = problem.regularizer
    sides = None
    if isinstance(h, Box):
        low, high = (np.broadcast_to(side, x.shape) / unit for side in (h.lower, h.upper))
        sides = list(zip(low, high, strict=True))
    scale = float(problem.data["unit_f"])
    constant = float(problem.data["constant"])

    def function(at: Any) -> tuple[float, Any]:
        value, slope, _ = exactly(kind, problem.data, unit * jnp.asarray(at), y0)
        if not np.isfinite(value):
            return 1e30, np.zeros_like(at)
        return float(value) / scale - constant, np.asarray(slope) * unit / scale

    found = scipy_minimize(function, np.asarray(x) / unit, jac=True, method="L-BFGS-B", bounds=sides, options=OPTIONS)
    return float(min(found.fun, function(np.asarray(x) / unit)[0]))


def distance(h: Regularizer, x: Array, grad: Array) -> float:
    """Of -grad from dh(x)."""
    if isinstance(h, Box):
        inward = jnp.where(x <= h.lower, jnp.minimum(grad, 0), grad)
        return float(jnp.linalg.norm(jnp.where(x >= h.upper, jnp.maximum(inward, 0), inward)))
    if isinstance(h, L1 | MCP):
        slope = jax.grad(lambda at: h.value(at))(jnp.where(x == 0, 1, x))
        at_zero = jnp.maximum(jnp.abs(grad) - h.strength, 0)
        return float(jnp.linalg.norm(jnp.where(x == 0, at_zero, grad + slope)))
    if isinstance(h, Simplex):  # normals are t on the support, and no more than t elsewhere

        def apart(t: float) -> float:
            return float(jnp.linalg.norm(jnp.where(x > 0, grad + t, jnp.minimum(grad + t, 0))))

        return minimize_scalar(apart, bounds=(float(-grad.max()), float(-grad.min())), options={"xatol": 1e-14}).fun
    return float(jnp.linalg.norm(grad))


# Runs.


def run(kind: str, h: str, seed: int) -> dict[str, Any]:
    problem, x0, y0 = drawn(kind, h, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = minimize(problem, x0=x0, y0=y0, throw=False, steps=2000)
    unit, scale = float(problem.data["unit_x"]), float(problem.data["unit_f"])
    constant = float(problem.data["constant"])
    at = [exactly(kind, problem.data, x, y0) for x in (x0, result.x)]
    penalties = [float(problem.regularizer.value(x)) for x in (x0, result.x)]
    start, end = ((float(a[0]) + p) / scale - constant for a, p in zip(at, penalties, strict=True))
    rounding = 1e-11 * (abs(constant) + abs(start) + abs(end))
    true = distance(problem.regularizer, result.x, at[1][1])
    terms = float(jnp.linalg.norm(at[1][1]))
    claimed = float(result.stationarity)
    row = {
        "problem": f"{kind} {h} {seed}",
        "status": result.status.name,
        "calls": int(result.counts.total),
        "steps": result.steps,
        "start": start,
        "end": end,
        "worse": not end <= start + rounding,
        "claim": true / claimed if claimed > 0 else 0.0,
        "rounded": true <= 1e-9 * terms,
        "solved": float(at[1][2]),
    }
    if h in ("none", "box"):
        rival, further = by_lbfgsb(kind, problem, x0, y0, unit), by_lbfgsb(kind, problem, result.x, y0, unit)
        gain = max(start - min(rival, end), rounding)
        row |= {"behind": (end - rival) / gain, "left": (end - further) / gain}
    return row


def line(row: dict[str, Any]) -> str:
    numbers = "".join(f"{row[name]:10.1e}" if name in row else f"{'-':>10s}" for name in ("claim", "left", "behind"))
    flags = " WORSE" * bool(row["worse"]) + " FALSE" * bool(row["claim"] > 1 and not row["rounded"])
    flags += " LEFT" * bool(row["status"] == "CONVERGED" and row.get("left", 0) > 1e-3)
    return f"{row['problem']:22s}{row['status']:16s}{row['calls']:7d}{row['end']:12.4g}{numbers}{flags}"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    kinds = arguments.only.split(",") if arguments.only else list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only: no kind is called {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}.")
    rows = []
    print(f"{'problem':22s}{'status':16s}{'calls':>7s}{'objective':>12s}{'claim':>10s}{'left':>10s}{'behind':>10s}")
    for kind in kinds:
        for h in PENALTIES:
            if h == "simplex" and kind != "mixture":
                continue
            for seed in arguments.seeds:
                rows.append(run(kind, h, seed))
                print(line(rows[-1]), flush=True)
    print(Counter(row["status"] for row in rows), f"worse {sum(row['worse'] for row in rows)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
