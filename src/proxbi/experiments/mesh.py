"""Hyper-cleaning of rows that are drawn where they are needed: how a mesh does, before one's own data are put on it."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from proxbi import AID, CG, Box, GradientDescent, Problem, ProxBiO, Rows, RowSource, minimize, shard

_BLOCK = 4096  # rows that are drawn by one seed, so that any block of rows can be had without those before it
_WRONG = 0.3  # of the labels of lower rows
_TRUSTED = 2_000  # upper rows
_SPREAD = 2.0  # of the centres of the classes, where rows scatter by 1
_REPEATS = 50  # all-reduces that are timed together


class Drawn(RowSource):
    """Rows around the centres of their classes, some with wrong labels: each block of them from a seed of its own."""

    def __init__(self, rows: int, features: int, classes: int, wrong: float, seed: int):
        """Two sources with the same numbers hold the same rows."""
        self.rows, self.features, self.classes, self.wrong, self.seed = rows, features, classes, wrong, seed
        self.centres = _SPREAD * np.random.default_rng(features).normal(size=(classes, features)) / features**0.5

    def __len__(self) -> int:
        return self.rows

    def take(self, indices: np.ndarray) -> PyTree:
        parts = [self.block(int(i), int(i) + 1) for i in indices]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def block(self, start: int, stop: int) -> PyTree:
        numbers = range(start // _BLOCK, -(-stop // _BLOCK))
        drawn = [self._drawn(number) for number in numbers]
        first = start - numbers[0] * _BLOCK
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[first : first + stop - start], *drawn)

    def truth(self) -> np.ndarray:
        """Which rows have wrong labels."""
        blocks = range(-(-self.rows // _BLOCK))
        return np.concatenate([self._labels(number)[1] for number in blocks])[: self.rows]

    def _labels(self, number: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
        draw = np.random.default_rng((self.seed, number))
        return draw.integers(0, self.classes, _BLOCK), draw.random(_BLOCK) < self.wrong, draw

    def _drawn(self, number: int) -> PyTree:
        label, wrong, draw = self._labels(number)
        z = self.centres[label] + draw.standard_normal((_BLOCK, self.features)) / self.features**0.5
        return {"z": z.astype(np.float32), "t": ((label + wrong) % self.classes).astype(np.int32)}


def _loss(y: Array, batch: Any) -> Array:
    scores = batch["z"] @ y.T
    hot = batch["t"][:, None] == jnp.arange(len(y), dtype=jnp.int32)
    return jax.nn.logsumexp(scores, axis=1) - jnp.sum(jnp.where(hot, scores, 0), axis=1)


def _lower(x: Array, y: Array, batch: Any) -> Array:
    return jnp.mean(jax.nn.sigmoid(x[batch.index]) * _loss(y, batch)) + 0.005 * jnp.sum(y**2)


def _upper(x: Array, y: Array, batch: Any) -> Array:
    return jnp.mean(_loss(y, batch))


def run(mesh: Mesh, rows: int, features: int, classes: int, steps: int, seed: int) -> dict[str, Any]:
    """`steps` steps of ProxBiO, each of 10 gradients and 10 Hessian products, and what they took."""
    lower = Drawn(rows, features, classes, _WRONG, seed)
    data = Rows(upper=Drawn(_TRUSTED, features, classes, 0.0, seed + 1), lower=lower)
    problem = shard(Problem(_upper, _lower, Box(-5.0, 5.0), data), mesh)
    solver = ProxBiO(AID(GradientDescent(1.0, steps=10), CG(steps=10, tol=1e-6)), step_size=10.0 * rows)
    result = minimize(problem, jnp.zeros(rows), jnp.zeros((classes, features)), solver, steps=steps)
    wrong, x = lower.truth(), np.asarray(result.x)
    return {
        "devices": mesh.size,
        "processes": jax.process_count(),
        "kind": mesh.devices.flat[0].device_kind,
        "rows": rows,
        "bytes of an all-reduce": 4 * features * classes,
        "seconds of an all-reduce": _all_reduce_seconds(mesh, features * classes),
        "seconds of a step": result.seconds.run / result.steps,
        "mean logit of wrong labels": float(x[wrong].mean()),
        "mean logit of right labels": float(x[~wrong].mean()),
    }


def _all_reduce_seconds(mesh: Mesh, size: int) -> float:
    """One sum over the mesh of vectors of this size, as the mean of several in a row."""
    each = NamedSharding(mesh, PartitionSpec("rows"))
    start = jax.jit(lambda: jnp.ones((mesh.size, size), jnp.float32), out_shardings=each)()

    def local(v: Array) -> Array:
        return jax.lax.fori_loop(0, _REPEATS, lambda _, v: jax.lax.psum(v, "rows") / mesh.size, v)

    program = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=PartitionSpec("rows"), out_specs=PartitionSpec("rows"), check_vma=False
        )
    )
    jax.block_until_ready(program(start))  # compiles
    before = time.perf_counter()
    jax.block_until_ready(program(start))
    return (time.perf_counter() - before) / _REPEATS
