"""Runs on meshes of 1, 2 and 4 virtual devices in a process of its own, which writes down what came out: `child_mesh.py
PART FOLDER`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import proxbi
from proxbi import AID, CG, L1, AdaptiveProxBiO, Box, GradientDescent, Problem, ProxBiO, ProxSOBA, Rows, glm
from proxbi._loop import Goal, advance
from proxbi._validate import checked
from proxbi.distributed import row_mesh

ROWS, TRUSTED, WIDTH, CLASSES = 203, 50, 6, 3


def data(rows: int = ROWS, dtype: Any = None) -> dict[str, Any]:
    """Rows of which a part has wrong labels, and rows that are right."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(CLASSES, WIDTH))

    def some(count: int, wrong: float) -> tuple[np.ndarray, np.ndarray]:
        truth = draw.integers(0, CLASSES, count)
        features = centres[truth] + 0.7 * draw.normal(size=(count, WIDTH))
        spoiled = (truth + 1) % CLASSES
        return features, np.where(draw.random(count) < wrong, spoiled, truth)

    train, held_out = some(rows, 0.3), some(TRUSTED, 0.0)

    def cast(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return jnp.asarray(pair[0], dtype or float), jnp.asarray(pair[1], jnp.int32)

    return {"train": cast(train), "held_out": cast(held_out)}


def linear(rows: int = ROWS, dtype: Any = None, h: Any = None) -> Problem:
    h = L1(5e-4) if h is None else h
    return glm.linear_model(**data(rows, dtype), loss="softmax", weights=jax.nn.sigmoid, ridge=0.1, regularizer=h)


def loss(y: Any, batch: Any) -> Any:
    scores = batch["z"] @ y.T
    return jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, batch["t"][:, None], axis=1)[:, 0]


def lower(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.sigmoid(x[batch.index]) * loss(y, batch)) + 0.05 * jnp.sum(y**2)


def upper(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(loss(y, batch))


def general(rows: int = ROWS, dtype: Any = None, h: Any = None) -> Problem:
    parts = data(rows, dtype)
    train, held_out = ({"z": z, "t": t} for z, t in (parts["train"], parts["held_out"]))
    return Problem(upper, lower, Box(-3.0, 3.0) if h is None else h, Rows(upper=held_out, lower=train))


PROBLEMS = {"linear": linear, "general": general}
FIXED = ProxBiO(AID(GradientDescent(0.5, steps=10), CG(steps=20, tol=1e-10)), step_size=200.0)
BATCHES = ProxSOBA(2.0, 0.5, batch=16)
DEFAULT = AdaptiveProxBiO(memory=8)


def starts(rows: int = ROWS, dtype: Any = None) -> tuple[Any, Any]:
    x0 = jnp.where(jnp.arange(rows) % 5 == 0, 0.0, 0.1)
    return x0.astype(dtype or float), jnp.zeros((CLASSES, WIDTH), dtype or float)


def collectives(text: str) -> dict[str, int]:
    """Bytes of each kind of collective in a compiled program, one execution of each."""
    found: dict[str, int] = {}
    sizes = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "pred": 1, "u8": 1}
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    for line in text.splitlines():
        if match := re.search(rf"= (.*?) ({kinds})(-start)?\(", line):
            shapes = re.findall(r"(\w+)\[([\d,]*)\]", match[1])
            size = sum(sizes[kind] * int(np.prod([int(n) for n in dims.split(",") if n])) for kind, dims in shapes)
            found[match[2]] = found.get(match[2], 0) + size
    return found


def program(problem: Problem, solver: Any, rows: int = ROWS) -> dict[str, int]:
    """What the compiled step of a solver sends."""
    x0, y0 = starts(rows)
    problem, x0, y0, state = checked(problem, solver, x0, y0, anywhere=True)
    number = np.int32(1)
    lowered = advance.thorough.lower(problem, solver, state, jax.random.key(0), number, number, Goal(), number)
    return collectives(lowered.compile().as_text())


def oracles(problem: Problem) -> dict[str, int]:
    """How many all-reduces a gradient, a product with g_yy and one with g_xy take."""
    problem, x, y, _ = checked(problem, FIXED, *starts(), anywhere=True)
    calls = {
        "grad_lower": lambda p, x, y: p.grad_lower(x, y),
        "hvp": lambda p, x, y: p.hvp(x, y)(y),
        "cross": lambda p, x, y: p.cross(x, y)(y),
    }
    texts = {name: jax.jit(call).lower(problem, x, y).compile().as_text() for name, call in calls.items()}
    return {name: len(re.findall(r" all-reduce(-start)?\(", text)) for name, text in texts.items()}


def fixed(said: dict[str, Any], out: dict[str, Any], name: str, meshes: tuple[int, ...], dtype: Any = None) -> None:
    """50 steps of ProxBiO without a mesh (0 devices) and on several, on one of them twice."""
    plain = PROBLEMS[name](dtype=dtype)
    for count in meshes:
        problem = proxbi.shard(plain, row_mesh(jax.devices()[:count])) if count else plain
        runs = [proxbi.minimize(problem, *starts(dtype=dtype), FIXED, steps=50) for _ in range(1 + (count == 2))]
        out[f"{name}-{count}"], said[f"{name}-{count}"] = np.asarray(runs[0].x), runs[0].objective
        if len(runs) > 1:
            out[f"{name}-again"] = np.asarray(runs[1].x)


def default(said: dict[str, Any], out: dict[str, Any], meshes: tuple[int, ...]) -> None:
    for count in meshes:
        problem = linear(h=Box(-3.0, 3.0))
        problem = proxbi.shard(problem, row_mesh(jax.devices()[:count])) if count else problem
        result = proxbi.minimize(problem, *starts(), DEFAULT, rtol=1e-6)
        out[f"default-{count}"], said[f"default-{count}"] = np.asarray(result.x), result.objective
        said[f"default-status-{count}"] = result.status.name
        said[f"default-stationarity-{count}"] = result.stationarity


def batches(out: dict[str, Any], meshes: tuple[int, ...]) -> None:
    for count in meshes:
        problem = proxbi.shard(general(), row_mesh(jax.devices()[:count])) if count else general()
        out[f"batches-{count}"] = np.asarray(proxbi.minimize(problem, *starts(), BATCHES, steps=20).x)


def numbers(mesh: Any = None) -> dict[str, np.ndarray]:
    """50 steps of ProxBiO in double precision, the same again, in single precision, and the default solver."""

    def on(problem: Problem) -> Problem:
        return problem if mesh is None else proxbi.shard(problem, mesh)

    found = {}
    for name, dtype in (("double", jnp.float64), ("again", jnp.float64), ("single", jnp.float32)):
        found[name] = proxbi.minimize(on(linear(dtype=dtype)), *starts(dtype=dtype), FIXED, steps=50).x
    result = proxbi.minimize(on(linear(h=Box(-3.0, 3.0))), *starts(), DEFAULT, rtol=1e-6)
    found |= {"default": result.x, "objective": result.objective, "status": result.status.name}
    return {name: np.asarray(value) for name, value in found.items()}


def quick(said: dict[str, Any], out: dict[str, Any]) -> None:
    jax.config.update("jax_enable_x64", True)
    fixed(said, out, "linear", (0, 2, 4))
    fixed(said, out, "general", (0, 4))
    mesh = row_mesh(jax.devices()[:4])
    for name, make in PROBLEMS.items():
        said[f"oracles-{name}"] = oracles(proxbi.shard(make(), mesh))
    said["sent"] = [program(proxbi.shard(linear(rows), mesh), FIXED, rows) for rows in (ROWS, 10 * ROWS)]


def slow(said: dict[str, Any], out: dict[str, Any]) -> None:
    jax.config.update("jax_enable_x64", True)
    default(said, out, (0, 1, 2, 4))
    batches(out, (0, 4))
    mesh = row_mesh(jax.devices()[:4])
    said["sent-default"] = program(proxbi.shard(linear(), mesh), DEFAULT)
    said["sent-batches"] = program(proxbi.shard(general(), mesh), BATCHES)
    said["sent-general"] = program(proxbi.shard(general(), mesh), FIXED)


def single(said: dict[str, Any], out: dict[str, Any]) -> None:
    fixed(said, out, "linear", (0, 1, 2, 4), jnp.float32)


def main(part: str, folder: str) -> None:
    out: dict[str, Any] = {}
    said: dict[str, Any] = {}
    {"quick": quick, "slow": slow, "single": single}[part](said, out)
    np.savez(Path(folder) / "arrays.npz", **out)
    (Path(folder) / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
