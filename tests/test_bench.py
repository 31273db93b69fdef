"""`make bench`: its truth is true, it finds out who is wrong, and what it writes can be read."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from bench import cold, pages, parts
from bench.environments import Worker
from bench.workers import common
from proxbi import Box, NegativeCappedL1

SMALL = common.SIZES | {"rows": 12, "held_out": 8, "features": 3, "classes": 3, "spread": 2.0, "ridge": 0.1}
KINDS = [(loss, x_is) for loss in ("softmax", "logistic", "squared") for x_is in ("weights", "ridge")]


@pytest.mark.parametrize(("loss", "x_is"), KINDS)
def test_the_truth_is_the_slope_of_the_objective(loss: str, x_is: str) -> None:
    sizes = SMALL | {"loss": loss, "x_is": x_is, "strength": 0.0}
    truth, x = common.Truth(sizes, common.arrays(sizes)), common.start(sizes).astype(float)
    direction = np.random.default_rng(1).normal(size=x.shape)
    h = 1e-5
    slope = (truth.phi(x + h * direction) - truth.phi(x - h * direction)) / (2 * h)
    np.testing.assert_allclose(truth.hypergradient(x) @ direction, slope, rtol=1e-6)


def test_the_prox_of_the_workers_is_ours() -> None:
    x = np.linspace(-3, 3, 61).astype("float32")
    sizes = common.SIZES | {"strength": 0.4, "cap": 2.0}
    np.testing.assert_allclose(common.prox(np, x, 0.5, sizes), NegativeCappedL1(0.4, 2.0).prox(jnp.asarray(x), 0.5))
    sizes = common.SIZES | {"strength": 0.0, "bound": 1.5}
    np.testing.assert_allclose(common.prox(np, x, 0.5, sizes), Box(-1.5, 1.5).prox(jnp.asarray(x), 0.5))


class StandIn:
    """A worker whose hypergradient is off by a factor."""

    name = "stand-in"

    def __init__(self, factor: float):
        self.factor = factor

    def ask(self, **order: Any) -> dict[str, Any]:
        sizes = common.SIZES | {key: value for key, value in order.items() if key != "task"}
        true = common.Truth(sizes, common.arrays(sizes)).hypergradient(common.start(sizes).astype(float))
        return {"version": "0", "hypergradient": (self.factor * true).tolist()}


def test_a_wrong_hypergradient_is_found_out() -> None:
    assert parts.judged(StandIn(1.0))["note"] == "right"  # type: ignore[arg-type]  # a stand-in for a worker
    wrong = parts.judged(StandIn(1.01))  # type: ignore[arg-type]  # likewise
    assert wrong["note"] == "wrong, and not timed"
    assert wrong["median"] == pytest.approx(0.01, rel=1e-3)


def test_a_worker_that_dies_says_why(tmp_path: Path) -> None:
    worker = Worker("nobody", sys.executable, gpu=False, log=tmp_path / "logs" / "nobody.txt")
    try:
        assert "No such file" in worker.ask(task="build")["failed"]
    finally:
        worker.end()


def test_an_error_is_told_in_one_line() -> None:
    quoted = RuntimeError("in a callback: Traceback\n  File x\nValueError: the reason\n\nmore words")
    assert common._reason(quoted) == "ValueError: the reason"
    assert common._reason(KeyError("x")) == "KeyError: 'x'"


def test_exponents_are_those_of_power_laws() -> None:
    assert parts.exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)
    assert parts.exponent([1, 4, 16], [5, 10, 20]) == pytest.approx(0.5)


def test_the_readme_has_an_example_that_prints_nothing_here() -> None:
    code = cold.example(cold.ROOT)
    assert "minimize(" in code
    assert "print(" not in code


def test_what_was_measured_is_written(tmp_path: Path) -> None:
    rows = [
        parts.told("hypergradient", "absent one", "absent", "could not be installed: <no reason>"),
        parts.row("step", "proxbi", "time", [1.0, 2.0, 4.0], "ms", rows=100, note="same iterates"),
        parts.row("step", "floor: reads", "time", [0.5], "ms", rows=100),
        parts.row("growth", "proxbi", "rows", [1.0], "ms", size=10),
        parts.row("growth", "proxbi", "rows", [10.0], "ms", size=100),
        parts.row("growth", "proxbi", "classes", [1.0], "ms", size=2),
        parts.row("growth", "proxbi", "classes", [1.0], "ms", size=20),
    ]
    pages.write(rows, tmp_path, "a machine")
    with (tmp_path / "bench.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["name"] for row in table] == [row["name"] for row in rows]
    assert (table[1]["low"], table[1]["median"], table[1]["high"]) == ("1.5", "2.0", "3.0")
    page = (tmp_path / "bench.html").read_text()
    assert "&lt;no reason&gt;" in page
    assert "rows: exponent 1.00" in page
    assert page.count("<svg") == 2
    assert (tmp_path / "bench.svg").read_text().count("<svg") == 3


@pytest.mark.slow
@pytest.mark.hours  # outside of CI, for its minutes
def test_our_worker_is_right_and_keeps_time(tmp_path: Path) -> None:
    worker = Worker("proxbi", sys.executable, gpu=False, log=tmp_path / "log.txt")
    try:
        assert parts.judged(worker)["note"] == "right"
        sizes = {"rows": 50, "held_out": 20, "features": 4, "classes": 3, "strength": 0.0, "bound": 3.0, "ridge": 0.1}
        assert worker.ask(task="build", **sizes)["first_seconds"] > 0
        assert worker.ask(task="steps")["seconds"] > 0
        assert worker.ask(task="default")["status"] == "CONVERGED"
        assert "AttributeError" in worker.ask(task="something else")["failed"]
        json.dumps(worker.ask(task="sweeping", count=3))
    finally:
        worker.end()
