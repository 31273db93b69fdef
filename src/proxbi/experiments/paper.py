"""The paper's experiment, data hyper-cleaning: every cell of Table 1 and every curve of Figure 1, many cells at a time.

Cells that compute their hypergradient the same way run as one program, `vmap`ped over their settings, labels and
starts: the features, by far the largest array, are then read once for all of them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from proxbi import _engine, checkpoint, datasets
from proxbi.cleaning.problem import cross_entropy, hyper_cleaning, lower_smoothness
from proxbi.datasets import Labelled
from proxbi.experiments import streams
from proxbi.experiments.protocols import CAP, RIDGE, Cell, Kind, Protocol, Settings, stack
from proxbi.glm import Rows
from proxbi.problem import Counts, Problem
from proxbi.regularizers import NegativeCappedL1
from proxbi.result import Snapshot

Tick = Callable[[int, int], None]
"""Told after each outer step: how many steps are done, of how many."""


class Splits(NamedTuple):
    """The rows each part of the experiment looks at; features with a constant 1."""

    train: Labelled
    trusted: Labelled
    figure: Labelled
    """What the y axis of the published Figure 1 is measured on: neither trained on nor optimised."""
    test: Labelled
    short_test: int
    """The published accuracy looks at the last so many test rows only."""


class Run(NamedTuple):
    """One cell with one seed; seed None is the published start and noise."""

    cell: Cell
    seed: int | None


def mnist_splits(folder: Path | None) -> Splits:
    """MNIST as the published protocol cuts it up."""
    images = datasets.mnist(folder)
    train = Labelled(datasets.standardize(images.train.features), images.train.labels)
    test = Labelled(datasets.standardize(images.test.features), images.test.labels)
    parts = slice(0, 20_000), slice(40_000, 45_000), slice(20_000, 40_000)
    return Splits(train.take(parts[0]), train.take(parts[1]), train.take(parts[2]), test, short_test=1000)


def digits_splits() -> Splits:
    """scikit-learn's digits in the same roles, for a try without MNIST: 900 to train, 300 trusted, 200 for the
    figure, 397 to test.
    """
    rows = datasets.digits()
    order = np.random.default_rng(0).permutation(len(rows.labels))
    train, trusted, figure, test = (rows.take(part) for part in np.split(order, [900, 1200, 1400]))
    return Splits(train, trusted, figure, test, short_test=100)


def run(
    runs: Sequence[Run],
    protocol: Protocol,
    splits: Splits,
    *,
    folder: Path | None = None,
    tick: Tick | None = None,
    batch: int = 64,
    engine: Literal["vmap", "joblib", "dask"] = "vmap",
    scheduler: str | None = None,
    workers: int | None = None,
) -> list[dict[str, Any]]:
    """All rows of all runs: one for each run and outer step, with what Table 1 and Figure 1 show.

    Finished steps are kept in `folder` (if given); a later call with the same arguments continues from them. `batch`
    runs at most share one program. The engines "joblib" and "dask" (see `proxbi.sweep`) take one run at a time, each in
    a process, with its own seed; a run that is finished in `folder`, which all must see, is not run again.
    """
    if engine != "vmap":
        return _elsewhere(runs, protocol, splits, folder, tick, (engine, scheduler, workers))
    groups = list(_groups(runs, batch))
    total, done, rows = protocol.steps * len(groups), 0, []
    for number, group in enumerate(groups):
        place = None if folder is None else folder / f"{group[0].cell.kind}-{number}"
        finished: list[dict[str, Any]] = []
        for history in _run_group(group, protocol, splits, place):
            finished = history
            done += 1
            if tick is not None:
                tick(done, total)
        rows += finished
    return rows


def _elsewhere(
    runs: Sequence[Run],
    protocol: Protocol,
    splits: Splits,
    folder: Path | None,
    tick: Tick | None,
    where: tuple[Literal["joblib", "dask"], str | None, int | None],
) -> list[dict[str, Any]]:
    """Each run in a process, and their rows in order."""
    place = None if folder is None else folder.absolute()
    rows: list[dict[str, Any]] = []
    with _engine.started(*where) as engine:
        held = _engine.packed(protocol, splits, place, name="protocol")
        for done, found in enumerate(engine(_alone, held, list(runs))):
            rows += found
            if tick is not None:
                tick((done + 1) * protocol.steps, protocol.steps * len(runs))
    return rows


def _alone(held: _engine.Packed, one: Run) -> list[dict[str, Any]]:
    """One run, in a process of its own; its steps are kept under its own name."""
    protocol, splits, folder = _engine.unpacked(held)
    place = None if folder is None else folder / re.sub(r"[^A-Za-z0-9.]+", "-", f"{one.cell}-{one.seed}")
    return run([one], protocol, splits, folder=place)


def table(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each run, without the curves' columns."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        last[row["method"], row["gamma"], row["p"], row["seed"]] = row
    return list(last.values())


def _groups(runs: Sequence[Run], batch: int) -> Iterator[Sequence[Run]]:
    for kind in ("AID", "ITD"):
        alike = [run for run in runs if run.cell.kind == kind]
        yield from (alike[start : start + batch] for start in range(0, len(alike), batch))


class _Batch(NamedTuple):
    """What differs from run to run in a group, stacked."""

    settings: Settings
    labels: Array
    wrong: Array


def _run_group(
    group: Sequence[Run], protocol: Protocol, splits: Splits, folder: Path | None
) -> Iterator[list[dict[str, Any]]]:
    """Yields the history so far after each outer step, continuing after the last one stored in `folder`."""
    kind = group[0].cell.kind
    # One product for all runs has classes enough: no layout makes it faster, and a second copy would only take room.
    base = hyper_cleaning(splits.train, splits.trusted, RIDGE, preconditioned=False, layout="rows")
    curvature = lower_smoothness(splits.train, RIDGE)
    labels = np.stack([_noisy(run, splits.train).labels for run in group])
    batch = _Batch(
        stack([protocol.settings(run.cell, curvature, len(splits.train.labels)) for run in group]),
        jnp.asarray(labels),
        jnp.asarray(labels != splits.train.labels),
    )
    starts = jnp.asarray(np.stack([_start(run, protocol, splits) for run in group]))
    state = jax.vmap(partial(_init, protocol, kind, base))(batch, starts)
    snapshot = Snapshot(0, state, Counts(), [])
    mark = {"runs": repr([str(run.cell) + str(run.seed) for run in group]), "protocol": protocol.name}
    mark["rows"] = repr([len(part.labels) for part in splits[:4]])
    if folder is not None:
        snapshot = checkpoint.load(folder, state, mark) or snapshot
        checkpoint.require_writable(folder)
        for _ in range(snapshot.step):
            yield snapshot.history
    held_out = {name: _on_device(rows) for name, rows in (("figure", splits.figure), ("test", splits.test))}
    while snapshot.step < protocol.steps:
        # Full precision: on some devices float32 products are rounded to fewer bits by default, and the digits would
        # not match.
        with jax.default_matmul_precision("highest"):
            state, counts = _step(protocol, kind, base, batch, snapshot.state)
            measured = _measure(base, batch, state, held_out, splits.short_test)
        rows = _rows(group, protocol, snapshot, counts, measured)
        snapshot = Snapshot(snapshot.step + 1, state, Counts(), [*snapshot.history, *rows])
        if folder is not None and (snapshot.step % 5 == 0 or snapshot.step == protocol.steps):
            checkpoint.save(folder, snapshot, mark, keep=1)
        yield snapshot.history


def _noisy(run: Run, train: Labelled) -> Labelled:
    if run.seed is None:
        return streams.spoiled(train, run.cell.p)
    return train._replace(labels=datasets.symmetric_noise(train.labels, run.cell.p, run.seed))


def _start(run: Run, protocol: Protocol, splits: Splits) -> Float[np.ndarray, "classes features"]:
    features = splits.train.features.shape[1]
    if protocol.start_at_zero:
        return np.zeros((10, features), np.float32)
    if run.seed is None:
        return streams.initial_weights(features=features)
    draw = np.random.default_rng(run.seed)
    return (np.sqrt(2 / 10) * draw.normal(size=(10, features))).astype(np.float32)


def _problem(base: Problem, one: _Batch) -> Problem:
    data = {**base.data, "train": Rows(base.data["train"].design, one.labels)}
    return replace(base, regularizer=NegativeCappedL1(one.settings.strength, CAP), data=data)


def _init(protocol: Protocol, kind: Kind, base: Problem, one: _Batch, start: Array) -> PyTree:
    x = jnp.zeros(len(one.labels), start.dtype)
    return protocol.solver(kind, one.settings).init(_problem(base, one), x, start)


@partial(jax.jit, static_argnums=(0, 1))
def _step(protocol: Protocol, kind: Kind, base: Problem, batch: _Batch, state: PyTree) -> tuple[PyTree, Counts]:
    def one_step(one: _Batch, state: PyTree) -> tuple[PyTree, Counts]:
        moved, info = protocol.solver(kind, one.settings).step(_problem(base, one), state, jax.random.key(0))
        return moved, jax.tree.map(jnp.asarray, info.counts)

    return jax.vmap(one_step)(batch, state)


@partial(jax.jit, static_argnums=4)
def _measure(
    base: Problem, batch: _Batch, state: PyTree, held_out: dict[str, dict[str, Array]], short: int
) -> dict[str, Array]:
    """What is reported, for each run: losses, accuracies, and how far the weights of right and wrong rows are apart."""

    def one_measure(one: _Batch, x: Array, y: Array) -> dict[str, Array]:
        problem = _problem(base, one)
        h = problem.regularizer.value(x)
        labels = held_out["test"]["labels"]
        right = jnp.argmax(held_out["test"]["features"] @ y.T, axis=1).astype(labels.dtype) == labels
        weights = jax.nn.sigmoid(x)
        return {
            "loss": jnp.mean(cross_entropy(y, held_out["test"])),
            "accuracy": jnp.mean(right),
            "short_accuracy": jnp.mean(right[-short:]),
            "upper": problem.value_upper(x, y) + h,
            "figure": jnp.mean(cross_entropy(y, held_out["figure"])) + h,
            "smallest_x": jnp.min(x),
            "largest_x": jnp.max(x),
            "weight_right": jnp.mean(weights, where=~one.wrong),
            "weight_wrong": jnp.mean(weights, where=one.wrong),
            "found": jnp.sum((weights < 0.5) & one.wrong) / jnp.maximum(1, jnp.sum(one.wrong)),
            "false_alarms": jnp.sum((weights < 0.5) & ~one.wrong) / jnp.sum(~one.wrong),
        }

    return jax.vmap(one_measure)(batch, state.x, state.y)


def _rows(
    group: Sequence[Run], protocol: Protocol, before: Snapshot, counts: Counts, measured: dict[str, Array]
) -> list[dict[str, Any]]:
    calls, measured = np.asarray(counts.total), jax.device_get(measured)
    earlier = [row["calls"] for row in before.history[-len(group) :]] or [0] * len(group)
    return [
        {
            "method": run.cell.method,
            "gamma": run.cell.gamma,
            "p": run.cell.p,
            "seed": run.seed,
            "step": before.step + 1,
            "inner_steps": (before.step + 1) * protocol.inner_steps,
            "calls": earlier[number] + int(np.broadcast_to(calls, len(group))[number]),
            **{name: float(values[number]) for name, values in measured.items()},
        }
        for number, run in enumerate(group)
    ]


def _on_device(rows: Labelled) -> dict[str, Array]:
    return {"features": jnp.asarray(rows.features), "labels": jnp.asarray(rows.labels)}
