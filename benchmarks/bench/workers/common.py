"""What all workers share: the problem, as numbers, and the talk with the runner. Needs NumPy only.

The problem is a weighted linear model whose training rows are weighted, or whose features are penalised, by x:

    g(x, y) = 1/n sum_i w_i l(W z_i, t_i) + 1/2 sum_j r_j |W_j|^2          f(x, y) = 1/m sum over held-out rows of l

with w = sigmoid(x) and r a number ("weights": the paper's hyper-cleaning), or w = 1 and r = exp(x) ("ridge"); and
h(x) = -strength sum_i min(|x_i|, cap) (the paper's), or a box |x_i| <= bound.

A worker reads one line of JSON, the sizes; builds; takes `steps` outer steps, which compiles; and answers with one line.
Each further line asks for those steps once more, and is answered by their seconds.
"""

import json
import os
import resource
import sys
import time
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


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = call()
    return time.perf_counter() - begin, found


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def say(**answer: Any) -> None:
    print(json.dumps(answer), file=TALK, flush=True)


# Libraries print what they like: standard output is theirs, and the answers go where it went.
TALK = os.fdopen(os.dup(1), "w")


def serve(build: Callable[[Sizes, Arrays], Peer]) -> None:
    """Build a peer from the first line of standard input, and time it once for each further line."""
    os.dup2(2, 1)
    asked = SIZES | json.loads(sys.stdin.readline())
    try:
        given, before = arrays(asked), peak_bytes()
        peer = build(asked, given)
    except ImportError as error:
        return say(absent=str(error))
    x0 = start(asked)

    def call() -> np.ndarray:
        return peer.steps(x0, asked["steps"], asked["outer_step"])

    answer: dict[str, Any] = {"version": peer.version}
    if asked.get("hypergradient"):
        say(**answer, hypergradient=peer.hypergradient(x0).tolist())
        return None
    first, x = seconds(call)
    say(**answer, first_seconds=first, x=x[:200].tolist(), size=float(np.linalg.norm(x)))
    for line in sys.stdin:
        order = json.loads(line)
        if "race" in order:
            say(**race(asked, given, peer, x0, **order["race"]))
        else:
            say(seconds=seconds(call)[0] / asked["steps"], peak_bytes=peak_bytes() - before)


def race(
    sizes: Sizes, given: Arrays, peer: Peer, x0: np.ndarray, outer_step: float, target: float, limit: float
) -> dict[str, Any]:
    """The seconds until Phi + h is at most `target`, by one setting; None if it is not within the limit.

    The objective is looked at after 1, 2, 4, ... steps from the start, with the clock stopped: what counts is the time of
    the first of these runs that is there, as if the number of steps had been known.
    """
    count, begin = 1, time.perf_counter()
    while time.perf_counter() - begin < limit:
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
