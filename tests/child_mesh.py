"""Runs on meshes of 1, 2 and 4 virtual devices in a process of its own, which writes down what came out: `child_mesh.py
FOLDER`.
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
from proxbi import AID, CG, Box, GradientDescent, Minibatch, NegativeCappedL1, Problem, ProxBiO, ProxSOBA, Rows, glm
from proxbi.distributed import row_mesh

ROWS, TRUSTED, WIDTH, CLASSES = 403, 50, 6, 3  # 403 is a prime, and so are 50 + 1


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
    cast = lambda pair: (jnp.asarray(pair[0], dtype or float), jnp.asarray(pair[1], jnp.int32))  # noqa: E731
    return {"train": cast(train), "held_out": cast(held_out)}


def linear(rows: int = ROWS, dtype: Any = None, h: Any = None) -> Problem:
    h = NegativeCappedL1(2e-4, 2.0) if h is None else h
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
SHORT = ProxBiO(AID(GradientDescent(0.5, steps=2), CG(steps=3)), step_size=20.0)


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


def program(problem: Problem, solver: Any, rows: int) -> dict[str, int]:
    """What the compiled step of a solver sends."""
    from proxbi._loop import Goal, advance
    from proxbi._validate import checked

    x0, y0 = starts(rows)
    problem, x0, y0, state = checked(problem, solver, x0, y0)
    number = np.int32(1)
    lowered = advance.thorough.lower(problem, solver, state, jax.random.key(0), number, number, Goal(), number)
    return collectives(lowered.compile().as_text())


def main(folder: str) -> None:
    jax.config.update("jax_enable_x64", True)
    out, said = {}, {}
    devices = jax.devices()
    for name, make in PROBLEMS.items():
        plain = make()
        for count in (0, 1, 2, 4):  # 0: without a mesh
            problem = proxbi.shard(plain, row_mesh(devices[:count])) if count else plain
            result = proxbi.minimize(problem, *starts(), FIXED, steps=50)
            out[f"{name}-{count}"] = np.asarray(result.x)
            said[f"{name}-{count}"] = result.objective
            if count == 2:
                again = proxbi.minimize(problem, *starts(), FIXED, steps=50)
                out[f"{name}-again"] = np.asarray(again.x)
    for count in (1, 4):
        mesh = row_mesh(devices[:count])
        result = proxbi.minimize(proxbi.shard(linear(h=Box(-3.0, 3.0)), mesh), *starts())
        out[f"default-{count}"] = np.asarray(result.x)
        said[f"default-{count}"] = result.objective
        said[f"status-{count}"] = result.status.name
        result = proxbi.minimize(proxbi.shard(general(), mesh), *starts(), Minibatch(SHORT, batch=16), steps=20)
        out[f"batches-{count}"] = np.asarray(result.x)
    mesh = row_mesh(devices[:4])
    for name, make in PROBLEMS.items():
        said[f"sent-{name}"] = [program(proxbi.shard(make(rows), mesh), FIXED, rows) for rows in (403, 4030)]
    said["sent-default"] = program(proxbi.shard(linear(h=Box(-3.0, 3.0)), mesh), proxbi.AdaptiveProxBiO(), ROWS)
    said["sent-batches"] = program(proxbi.shard(general(), mesh), ProxSOBA(0.1, 0.1, batch=16), ROWS)
    np.savez(Path(folder) / "arrays.npz", **out)
    (Path(folder) / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
