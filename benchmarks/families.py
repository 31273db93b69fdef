"""The default solver on per-feature penalties exp(x_i): does it end at a good answer, and never at one worse than x0?

python benchmarks/families.py [--part first|second|all] [--only wine] [--json rows.json]

Ridge and logistic regression with one penalty exp(x_i) for each feature, fitted on a random half of a table (lower
level) and judged on the other half (upper level): benchmark_bilevel's own problem, from x0 = -3 and x0 = 0, without h
and in Box(-20, 20). `first` has two tables of scikit-learn, three splits each; `second` has other splits of these and
four other tables. Each has 48 runs, half of them in the box. Tables, splits and starts were fixed before the solver was
changed; none is taken out. Tables that do not come with scikit-learn are looked for in the folder that PROXBI_TABLES
names, then in ../shared/data/tables; those that are not there are skipped, with a sentence.

The truth is Phi and grad Phi by Newton's method with dense QR factorisations in NumPy, and L-BFGS-B of SciPy on these:
from x0, and from the default's answer. F = Phi + h, and in each row

gain    what there is to gain: F(x0) less the smaller of F(answer) and F(L-BFGS-B from x0)
behind  (F(answer) - F(L-BFGS-B from x0)) / gain; negative where the default found the better point
more    (F(answer) - F(L-BFGS-B from the answer)) / gain: what was left to gain at the answer

L-BFGS-B from x0 does not depend on proxbi and is kept in ~/.cache/proxbi/families.json.
"""

import argparse
import hashlib
import json
import math
import os
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.optimize import minimize as scipy_minimize
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from proxbi import Box, Problem, minimize

jax.config.update("jax_enable_x64", True)
SIDE = 20.0  # of the box
FAR = 700.0  # exp(x) is computed for x within +- FAR; beyond it Phi does not change any more
OPTIONS = {"maxiter": 2000, "maxfun": 4000}  # of L-BFGS-B; else its defaults
SPAM_ROWS = 600
CACHE = Path.home() / ".cache" / "proxbi" / "families.json"
Array = np.ndarray
Data = dict[str, jax.Array]


@dataclass(frozen=True)
class Run:
    table: str
    loss: str
    split: int
    start: float
    box: bool

    @property
    def name(self) -> str:
        return f"{self.table} {self.loss} {self.split} {self.start:g} {'box' if self.box else 'free'}"


FIRST: dict[str, tuple[int, ...]] = {"breast_cancer": (0, 1, 2), "diabetes": (0, 1, 2)}
SECOND: dict[str, tuple[int, ...]] = {
    "breast_cancer": (10,),
    "diabetes": (11,),
    "wine": (12,),
    "spam": (13,),
    "mdrr": (14,),
    "tecator": (15,),
}


def runs(splits: dict[str, tuple[int, ...]]) -> list[Run]:
    return [
        Run(table, loss, split, start, box)
        for table, seeds in splits.items()
        for loss in ("ridge", "logistic")
        for split in seeds
        for start in (-3.0, 0.0)
        for box in (False, True)
    ]


PARTS = {"first": runs(FIRST), "second": runs(SECOND)}
assert all(len(part) == 48 and sum(run.box for run in part) == 24 for part in PARTS.values())


# The tables: features, a target for ridge regression and labels of +-1 for logistic regression.


def folder() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "tables"
    return Path(os.environ.get("PROXBI_TABLES", beside))


@cache
def table(name: str) -> tuple[Array, Array, Array] | None:
    """X, target, labels as they are on file; None if the table is not there."""
    if name == "breast_cancer":
        X, y = load_breast_cancer(return_X_y=True)
        labels = np.where(y == 1, 1.0, -1.0)
        return X, labels, labels
    if name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        return X, y, np.where(y > np.median(y), 1.0, -1.0)
    if name == "wine":
        X, y = load_wine(return_X_y=True)
        return X, y.astype(float), np.where(y == 0, 1.0, -1.0)
    path = folder() / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        X, y = file["X"].astype(float), file["y"]
    if name == "tecator":  # 100 neighbouring channels of a spectrum: each fifth
        return X[:, ::5], y.astype(float), np.where(y > np.median(y), 1.0, -1.0)
    if name == "mdrr":  # 342 descriptors of molecules: the first 40
        X = X[:, :40]
    if name == "spam":
        rows = np.random.default_rng(0).permutation(len(y))[:SPAM_ROWS]
        X, y = X[rows], y[rows]
    labels = np.where(y == np.unique(y)[0], 1.0, -1.0)
    return X, labels, labels


def halves(run: Run) -> dict[str, Array] | None:
    """Standardised features Z and targets t of the half to fit, V and s of the half to judge by."""
    found = table(run.table)
    if found is None:
        return None
    X, target, labels = found
    X = X[:, np.ptp(X, axis=0) > 0]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    t = target - target.mean() if run.loss == "ridge" else labels
    rows = np.random.default_rng(run.split).permutation(len(t))
    fit, judge = rows[: len(t) // 2], rows[len(t) // 2 :]
    return {"Z": X[fit], "t": t[fit], "V": X[judge], "s": t[judge]}


# The problem, as a user writes it: functions of data, so that one compiled program serves all of one shape.


def ridge_lower(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    return jnp.mean((data["Z"] @ y - data["t"]) ** 2) / 2 + jnp.sum(jnp.exp(x) * y**2) / 2


def ridge_upper(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    return jnp.mean((data["V"] @ y - data["s"]) ** 2) / 2


def logistic_lower(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    return jnp.mean(jnp.logaddexp(0.0, -data["t"] * (data["Z"] @ y))) + jnp.sum(jnp.exp(x) * y**2) / 2


def logistic_upper(x: jax.Array, y: jax.Array, data: Data) -> jax.Array:
    return jnp.mean(jnp.logaddexp(0.0, -data["s"] * (data["V"] @ y)))


def problem_of(run: Run, data: dict[str, Array]) -> Problem:
    upper, lower = (ridge_upper, ridge_lower) if run.loss == "ridge" else (logistic_upper, logistic_lower)
    arrays = {name: jnp.asarray(value) for name, value in data.items()}
    return Problem(upper, lower, data=arrays, **({"regularizer": Box(-SIDE, SIDE)} if run.box else {}))


# The truth.


class Factor:
    """min |B d - c| and (B'B)^-1 v by a QR factorisation of B with columns of length 1; by an SVD if B is singular.

    B'B itself is never formed: with the penalties as rows exp(x / 2) of B, its digits would be lost long before B's."""

    def __init__(self, B: Array) -> None:
        self.scale = 1.0 / np.maximum(np.linalg.norm(B, axis=0), 1e-300)
        self.q, self.r = qr(B * self.scale, mode="economic", check_finite=False)
        self.singular = np.min(np.abs(np.diag(self.r))) < 1e-14
        if self.singular:
            u, s, self.vt = np.linalg.svd(self.r)
            self.u, self.inverse = u, np.where(s > 1e-15 * s[0], 1.0 / np.maximum(s, 1e-300), 0.0)

    def least_squares(self, c: Array) -> Array:
        c = self.q.T @ c
        if self.singular:
            return self.scale * (self.vt.T @ (self.inverse * (self.u.T @ c)))
        return self.scale * solve_triangular(self.r, c, check_finite=False)

    def normal(self, v: Array) -> Array:
        v = self.scale * v
        if self.singular:
            return self.scale * (self.vt.T @ (self.inverse**2 * (self.vt @ v)))
        half = solve_triangular(self.r, v, trans=1, check_finite=False)
        return self.scale * solve_triangular(self.r, half, check_finite=False)


class Truth:
    """Phi and grad Phi; infinity and zeros where they are not finite, or Newton's method does not end."""

    def __init__(self, run: Run, data: dict[str, Array]) -> None:
        self.ridge, self.box = run.loss == "ridge", run.box
        self.Z, self.t, self.V, self.s = (data[name] for name in "ZtVs")
        self.y = np.zeros(self.Z.shape[1])  # where the last solve ended: the next may start there

    def loss(self, prediction: Array, t: Array) -> float:
        if self.ridge:
            return float(np.mean((prediction - t) ** 2) / 2)
        return float(np.mean(np.logaddexp(0.0, -t * prediction)))

    def slope(self, prediction: Array, t: Array) -> Array:
        return prediction - t if self.ridge else -t * expit(-t * prediction)

    def g(self, penalty: Array, y: Array) -> float:
        return self.loss(self.Z @ y, self.t) + float(np.sum((np.sqrt(penalty) * y) ** 2) / 2)

    def factor(self, penalty: Array, y: Array) -> tuple[Factor, Array]:
        """g_yy = B'B, and -g_y = B'c."""
        rows = math.sqrt(len(self.t))
        prediction, root = self.Z @ y, np.sqrt(penalty)
        if self.ridge:
            weight, right = np.ones(len(self.t)), self.t - prediction
        else:
            margin = np.clip(self.t * prediction, -2 * FAR, 2 * FAR)
            weight = np.sqrt(expit(margin) * expit(-margin))
            right = self.t * np.exp(-margin / 2)  # the slope over the weight, without a quotient of tiny numbers
        B = np.vstack([weight[:, None] * self.Z / rows, np.diag(root)])
        return Factor(B), np.concatenate([right / rows, -root * y])

    def lower(self, penalty: Array, steps: int = 1000) -> Array | None:
        """Newton's method with backtracking, until the predictions for all rows stand still."""
        zero = np.zeros_like(self.y)
        y = self.y if self.g(penalty, self.y) < self.g(penalty, zero) else zero
        last = math.inf
        for _ in range(steps):
            factor, c = self.factor(penalty, y)
            d = factor.least_squares(c)
            if not np.all(np.isfinite(d)):
                return None
            size = max(float(np.max(np.abs(A @ y))) for A in (self.Z, self.V))
            change = max(float(np.max(np.abs(A @ d))) for A in (self.Z, self.V)) / (1e-300 + size)
            if change < 1e-9 or (change < 1e-5 and change > last / 4):  # done, or as far as rounding lets it go
                return y + d if change < 1e-9 else y
            last, here, t = change, self.g(penalty, y), 1.0
            slope = -float(np.sum((factor.q.T @ c) ** 2))
            while t > 1e-10 and not self.g(penalty, y + t * d) <= here + 1e-4 * t * slope + 1e-14 * here:
                t /= 2
            y = y + t * d
        return None

    def __call__(self, x: Array) -> tuple[float, Array]:
        nothing = math.inf, np.zeros_like(self.y)
        if not np.all(np.isfinite(x)):
            return nothing
        penalty = np.exp(np.clip(x, -FAR, FAR))
        with np.errstate(all="ignore"):
            y = self.lower(penalty)
            if y is None:
                return nothing
            self.y = y
            prediction = self.V @ y
            w = self.factor(penalty, y)[0].normal(self.V.T @ self.slope(prediction, self.s) / len(self.s))
            value, gradient = self.loss(prediction, self.s), -w * (penalty * y)
        return (value, gradient) if math.isfinite(value) and np.all(np.isfinite(gradient)) else nothing

    def objective(self, x: Array) -> float:
        """F = Phi + h."""
        outside = self.box and not np.all(np.abs(x) <= SIDE * (1 + 1e-12))
        return math.inf if outside else self(x)[0]

    def lbfgsb(self, x0: Array) -> float:
        """The objective where L-BFGS-B from x0 ends. It cannot work with infinity: a huge number stands for that."""
        start = self.objective(x0)
        if not math.isfinite(start):
            return math.inf
        huge = 1e6 * (1 + abs(start))

        def fun(x: Array) -> tuple[float, Array]:
            value, gradient = self(x)
            return (value, gradient) if value < huge else (huge, np.zeros_like(gradient))

        bounds = [(-SIDE, SIDE)] * len(x0) if self.box else None
        answer = scipy_minimize(fun, x0, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS)
        return min(start, self.objective(answer.x))


def from_x0(run: Run, data: dict[str, Array], truth: Truth, x0: Array) -> float:
    """L-BFGS-B from x0, from the cache if it is there."""
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(data[name]).tobytes() for name in "ZtVs")).hexdigest()[:16]
    key = f"{run.name} {digest} {SIDE} {sorted(OPTIONS.items())}"
    known = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    if key not in known:
        known[key] = truth.lbfgsb(x0)
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        CACHE.write_text(json.dumps(known, indent=1))
    return float(known[key])


# One run, and what is said about it.


def measure(run: Run, data: dict[str, Array]) -> dict[str, Any]:
    truth, features = Truth(run, data), data["Z"].shape[1]
    x0 = np.full(features, run.start)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = minimize(problem_of(run, data), x0=jnp.asarray(x0), y0=jnp.zeros(features), throw=False)
    seconds, x = time.perf_counter() - begin, np.asarray(result.x)
    start, answer, peer = truth.objective(x0), truth.objective(x), from_x0(run, data, truth, x0)
    after = truth.lbfgsb(x)
    gain = max(start - min(peer, answer), 1e-300)
    return {
        "table": run.table,
        "loss": run.loss,
        "split": run.split,
        "start": run.start,
        "box": run.box,
        "status": result.status.name,
        "calls": int(result.counts.total),
        "seconds": seconds,
        "at_x0": start,
        "at_answer": answer,
        "lbfgsb_from_x0": peer,
        "lbfgsb_from_answer": after,
        "gain": gain,
        "behind": (answer - peer) / gain,
        "more": (answer - after) / gain if math.isfinite(answer) else math.inf,
        "worse": not answer <= start * (1 + 1e-12),
        "largest_x": float(np.max(np.abs(x))),
    }


HEADER = (
    "table         loss     split start box  status        calls  seconds         F(x0)     F(answer)"
    "   L-BFGS-B x0  L-BFGS-B ans.    behind      more"
)


def line(row: dict[str, Any]) -> str:
    values = (row["at_x0"], row["at_answer"], row["lbfgsb_from_x0"], row["lbfgsb_from_answer"])
    return (
        f"{row['table']:14s}{row['loss']:9s}{row['split']:5d}{row['start']:6g} {'box ' if row['box'] else 'free'} "
        f"{row['status']:12s}{row['calls']:7d}{row['seconds']:9.1f}"
        + "".join(f"{value:14.7g}" for value in values)
        + f"{row['behind']:10.1e}{row['more']:10.1e}{'   WORSE THAN x0' if row['worse'] else ''}"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    converged = [row for row in rows if row["status"] == "CONVERGED"]
    statuses = Counter(row["status"] for row in rows)
    worse, falsely = (sum(row["worse"] for row in some) for some in (rows, converged))
    left = sum(row["more"] >= 1e-3 for row in converged)
    return "\n".join(
        [
            f"CONVERGED: {len(converged)} of {len(rows)}",
            "all statuses: " + ", ".join(f"{name} {number}" for name, number in statuses.most_common()),
            f"worse than x0: {worse}, of them CONVERGED: {falsely}",
            f"UNBOUNDED: {statuses['UNBOUNDED']}",
            f"CONVERGED, and L-BFGS-B from there gains 1e-3 of the gain or more: {left}",
            f"behind L-BFGS-B from x0 by more than 5 % of the gain: {sum(row['behind'] > 0.05 for row in rows)}",
            f"behind L-BFGS-B from x0 by more than 20 % of the gain: {sum(row['behind'] > 0.2 for row in rows)}",
            f"calls: {sum(row['calls'] for row in rows)}, seconds: {sum(row['seconds'] for row in rows):.0f}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--only", metavar="TABLE", choices=sorted(FIRST | SECOND), help="the runs on this table alone")
    parser.add_argument("--json", type=Path, help="write all rows there")
    arguments = parser.parse_args()
    chosen = PARTS["first"] + PARTS["second"] if arguments.part == "all" else PARTS[arguments.part]
    rows: list[dict[str, Any]] = []
    absent: Counter[str] = Counter()
    print(HEADER)
    for run in chosen:
        if arguments.only not in (None, run.table):
            continue
        data = halves(run)
        if data is None:
            absent[run.table] += 1
            continue
        rows.append(measure(run, data))
        print(line(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    print("\n" + summary(rows))
    for name, number in absent.items():
        print(f"{number} runs on {name} were skipped: {folder() / f'{name}.npz'} is not there (set PROXBI_TABLES).")


if __name__ == "__main__":
    main()
