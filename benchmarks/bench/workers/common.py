"""What all workers share: the problem, as numbers, and the talk with the runner. Needs NumPy only.

The problem is a weighted linear model whose training rows are weighted, or whose features are penalised, by x:

    g(x, y) = 1/n sum_i w_i l(W z_i, t_i) + 1/2 sum_j r_j |W_j|^2          f(x, y) = 1/m sum over held-out rows of l

with w = sigmoid(x) and r a number ("weights": the paper's hyper-cleaning), or w = 1 and r = exp(x) ("ridge"); and
h(x) = -strength sum_i min(|x_i|, cap) (the paper's), or a box |x_i| <= bound.

A worker is a process that reads orders, one line of JSON each, and answers each by one line:

    {"task": "hypergradient", sizes}      the hypergradient of a problem of these sizes, at the start
    {"task": "build", sizes}              makes a problem, and takes `steps` outer steps, which compiles
    {"task": "steps"}                     takes them again: seconds for each, and the peak of the memory
    {"task": "race", ...}                 the seconds to an objective
    {"task": any other, ...}              what else a worker can do with the problem that was built
"""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Sizes = dict[str, Any]
Arrays = dict[str, np.ndarray]

SIZES: Sizes = {
    "rows": 20_000,
    "held_out": 5_000,
    "features": 784,
    "classes": 10,
    "loss": "softmax",
    "x_is": "weights",
    "lower_steps": 5,
    "cg_steps": 10,
    "step_size": 0.1,
    "outer_step": 1.0,
    "ridge": 2e-3,
    "strength": 5e-6,
    "cap": 20.0,
    "bound": 1e9,
    "steps": 3,
    "spread": 10.0,
    "seed": 0,
}
"""The paper's problem: 784 features, 10 classes, T = 5 lower steps, 10 CG steps, and three outer steps in a call."""


SHOWN = 200  # entries of x that are compared


class Peer(Protocol):
    """What a worker builds."""

    version: str

    def hypergradient(self, x: np.ndarray) -> np.ndarray:
        """At x, after `lower_steps` steps from y = 0."""

    def steps(self, x: np.ndarray, count: int, outer_step: float) -> np.ndarray:
        """x after so many outer steps. y starts at 0, and goes on from one step to the next."""


def shape_of_x(sizes: Sizes) -> tuple[int]:
    return (sizes["rows"] if sizes["x_is"] == "weights" else sizes["features"],)


def start(sizes: Sizes) -> np.ndarray:
    """Weights of a half, or small penalties."""
    return np.full(shape_of_x(sizes), 0.0 if sizes["x_is"] == "weights" else -3.0, np.float32)


def outputs(sizes: Sizes) -> int:
    return sizes["classes"] if sizes["loss"] == "softmax" else 1


def arrays(sizes: Sizes) -> Arrays:
    """Rows of features whose scales differ by `spread`, and targets of a linear model; a fifth of them is wrong."""
    draw = np.random.default_rng(sizes["seed"])
    scales = np.geomspace(1 / sizes["spread"], 1, sizes["features"]).astype(np.float32)
    true = draw.normal(size=(outputs(sizes), sizes["features"])) / np.sqrt(sizes["features"])
    made: Arrays = {}
    for part in ("rows", "held_out"):
        count = sizes[part]
        features = draw.standard_normal((count, sizes["features"]), dtype=np.float32) * scales
        scores = 3 * features @ true.T.astype(np.float32)
        wrong = (draw.uniform(size=count) < 0.2) & (part == "rows")
        made[part] = features
        made[f"{part}_targets"] = targets(sizes, scores, wrong, draw)
    return made


def targets(sizes: Sizes, scores: np.ndarray, wrong: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    if sizes["loss"] == "softmax":
        other = (np.argmax(scores, axis=1) + draw.integers(1, max(2, sizes["classes"]), len(wrong))) % sizes["classes"]
        return np.where(wrong, other, np.argmax(scores, axis=1)).astype(np.int32)
    if sizes["loss"] == "logistic":
        return ((scores[:, 0] > 0) ^ wrong).astype(np.float32)
    return (scores[:, 0] + np.where(wrong, 5, 0.3) * draw.normal(size=len(wrong))).astype(np.float32)


def prox(m: Any, x: Any, step: float, sizes: Sizes) -> Any:
    """Of h, in the array module `m`."""
    side = m.where(x >= 0, 1.0, -1.0)
    magnitude = side * x
    pushed = m.clip(magnitude + step * sizes["strength"], None, sizes["cap"])
    return m.clip(side * m.where(magnitude > pushed, magnitude, pushed), -sizes["bound"], sizes["bound"])


def seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    begin = clock()
    found = call()
    return clock() - begin, found


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def say(**answer: Any) -> None:
    print(json.dumps(answer), file=TALK, flush=True)


# Libraries print what they like: standard output is theirs, and the answers go where it went.
TALK = os.fdopen(os.dup(1), "w")


class Desk:
    """The problem that was built last, and what can be asked about it."""

    def __init__(self, build: Callable[[Sizes, Arrays], Peer]):
        self.make = build

    def _made(self, sizes: Sizes) -> tuple[Sizes, Arrays, Peer]:
        asked = SIZES | sizes
        given = arrays(asked)
        return asked, given, self.make(asked, given)

    def hypergradient(self, **sizes: Any) -> dict[str, Any]:
        asked, _, peer = self._made(sizes)
        return {"version": peer.version, "hypergradient": peer.hypergradient(start(asked)).tolist()}

    def build(self, **sizes: Any) -> dict[str, Any]:
        self.before = peak_bytes()
        self.sizes, self.given, self.peer = self._made(sizes)
        spent, x = seconds(self._call)
        return {"version": self.peer.version, "first_seconds": spent, "x": x[:SHOWN].tolist()}

    def _call(self) -> np.ndarray:
        return self.peer.steps(start(self.sizes), self.sizes["steps"], self.sizes["outer_step"])

    def steps(self) -> dict[str, Any]:
        """Seconds of the wall, and of all processors together, which other processes disturb less."""
        processors, (wall, _) = seconds(lambda: seconds(self._call), time.process_time)
        count = self.sizes["steps"]
        return {
            "seconds": wall / count,
            "processor_seconds": processors / count,
            "peak_bytes": peak_bytes() - self.before,
        }

    def race(self, **order: Any) -> dict[str, Any]:
        return race(self.sizes, self.given, self.peer, **order)


def serve(build: Callable[[Sizes, Arrays], Peer]) -> None:
    """Answer orders until standard input ends."""
    os.dup2(2, 1)
    desk = Desk(build)
    for line in sys.stdin:
        order = json.loads(line)
        task = order.pop("task")
        try:
            say(**(getattr(desk, task, None) or getattr(desk.peer, task))(**order))
        except Exception as error:  # whatever it is, the runner has to know
            traceback.print_exc()
            say(failed=_reason(error))


def _reason(error: Exception) -> str:
    """In one line: the last that names an error, as one may quote others."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    return next((line for line in reversed(lines) if "Error: " in line), lines[0])


def race(sizes: Sizes, given: Arrays, peer: Peer, *, outer_step: float, target: float, limit: float) -> dict[str, Any]:
    """The seconds until Phi + h is at most `target`, by one setting; None if it is not within the limit.

    The objective is looked at after 1, 2, 4, ... steps from the start, with the clock stopped: what counts is the time
    of the first of these runs that is there, as if the number of steps had been known.
    """
    x0, count, spent = start(sizes), 1, 0.0
    while spent < limit:
        spent, x = seconds(lambda count=count: peer.steps(x0, count, outer_step))
        if not np.all(np.isfinite(x)):
            return {"seconds": None, "steps": count}
        if objective(sizes, given, x) <= target:
            spent, x = seconds(lambda count=count: peer.steps(x0, count, outer_step))  # again, now that it is compiled
            return {"seconds": spent, "steps": count}
        count *= 2
    return {"seconds": None, "steps": count}


# --- the truth, in float64 --------------------------------------------------------------------------------------------


def row_losses(sizes: Sizes, z: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """l, l' and l'' of each row."""
    if sizes["loss"] == "squared":
        return (z[:, 0] - t) ** 2 / 2, z - t[:, None], np.ones((len(z), 1, 1))
    if sizes["loss"] == "logistic":
        p = 1 / (1 + np.exp(-z))
        return np.logaddexp(0, z[:, 0]) - t * z[:, 0], p - t[:, None], (p * (1 - p))[:, :, None]
    top = z.max(axis=1, keepdims=True)
    p = np.exp(z - top)
    total = p.sum(axis=1, keepdims=True)
    p = p / total
    value = (top + np.log(total))[:, 0] - z[np.arange(len(z)), t]
    hot = np.eye(z.shape[1])[t]
    return value, p - hot, np.einsum("nk,kl->nkl", p, np.eye(z.shape[1])) - np.einsum("nk,nl->nkl", p, p)


class Truth:
    """y*(x), Phi(x) + h(x) and the gradient of Phi, by Newton's method and dense linear algebra."""

    def __init__(self, sizes: Sizes, given: Arrays):
        self.sizes = sizes
        self.data = {key: value.astype(float) if value.dtype.kind == "f" else value for key, value in given.items()}

    def parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """w / n and r."""
        n, d = self.sizes["rows"], self.sizes["features"]
        if self.sizes["x_is"] == "weights":
            return 1 / (1 + np.exp(-x)) / n, np.full(d, self.sizes["ridge"])
        return np.full(n, 1 / n), np.exp(x)

    def at(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """g_y, g_yy and l' of the training rows."""
        features, (w, r) = self.data["rows"], self.parts(x)
        _, slope, curved = row_losses(self.sizes, features @ y.T, self.data["rows_targets"])
        gradient = (w[:, None] * slope).T @ features + y * r
        hessian = np.einsum("n,nkl,ni,nj->kilj", w, curved, features, features, optimize=True).reshape(y.size, y.size)
        return gradient, hessian + np.diag(np.tile(r, len(y))), slope

    def lower(self, x: np.ndarray) -> np.ndarray:
        """y*(x)."""
        y = np.zeros((outputs(self.sizes), self.sizes["features"]))
        for _ in range(100):
            gradient, hessian, _ = self.at(x, y)
            step = np.linalg.solve(hessian, gradient.ravel()).reshape(y.shape)
            y = y - step
            if np.linalg.norm(step) <= 1e-12 * (1 + np.linalg.norm(y)):
                return y
        raise RuntimeError("Newton's method did not converge.")

    def phi(self, x: np.ndarray) -> float:
        """Phi + h."""
        value, _, _ = row_losses(self.sizes, self.data["held_out"] @ self.lower(x).T, self.data["held_out_targets"])
        return float(value.mean() - self.sizes["strength"] * np.minimum(np.abs(x), self.sizes["cap"]).sum())

    def hypergradient(self, x: np.ndarray) -> np.ndarray:
        """-g_xy g_yy^-1 f_y: f does not depend on x but through y."""
        y, held_out = self.lower(x), self.data["held_out"]
        _, hessian, slope = self.at(x, y)
        _, upper, _ = row_losses(self.sizes, held_out @ y.T, self.data["held_out_targets"])
        v = np.linalg.solve(hessian, (upper.T @ held_out / len(held_out)).ravel()).reshape(y.shape)
        if self.sizes["x_is"] == "ridge":
            return -np.exp(x) * np.sum(y * v, axis=0)
        p = 1 / (1 + np.exp(-x))
        return -p * (1 - p) / self.sizes["rows"] * np.sum(slope * (self.data["rows"] @ v.T), axis=1)


def objective(sizes: Sizes, given: Arrays, x: np.ndarray) -> float:
    return Truth(sizes, given).phi(x.astype(float))
