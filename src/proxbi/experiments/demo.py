"""Data hyper-cleaning on scikit-learn's digits by proximal BiO-AIDm: the first thing a new user sees work."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from proxbi import datasets
from proxbi.cleaning import hyper_cleaning
from proxbi.cleaning.problem import lower_smoothness
from proxbi.lower import Nesterov
from proxbi.minimize import AnyCallback, minimize
from proxbi.problem import Problem
from proxbi.regularizers import NegativeCappedL1
from proxbi.result import Result
from proxbi.solvers import paper_solver

TRAIN, TRUSTED = 1000, 200
RIDGE = 1e-3
OUTER_STEP = 1000.0  # the gradient in one of n weights is of order 1/n
REGULARIZER = NegativeCappedL1(1e-5, 20.0)  # pushes undecided weights away from 1/2; the paper's h


class Demo(NamedTuple):
    """What the demo found."""

    result: Result
    weights: Float[np.ndarray, " train"]
    wrong: Bool[np.ndarray, " train"]
    """Which labels were spoiled (known here, unlike in life)."""
    table: list[dict[str, Any]]


def run(rate: float, steps: int, seed: int, callbacks: Sequence[AnyCallback] = ()) -> Demo:
    """Spoil a share `rate` of 1,000 training labels, learn their weights from 200 trusted rows, test on the other
    597.
    """
    rows = datasets.digits()
    order = np.random.default_rng(seed).permutation(len(rows.labels))
    clean = rows.take(order[:TRAIN])
    train = clean._replace(labels=datasets.symmetric_noise(clean.labels, rate, seed))
    trusted, test = rows.take(order[TRAIN : TRAIN + TRUSTED]), rows.take(order[TRAIN + TRUSTED :])

    problem = hyper_cleaning(train, trusted, RIDGE, REGULARIZER)
    smoothness = lower_smoothness(train, RIDGE)
    root = np.sqrt(smoothness / (2 * RIDGE))
    eta = (root - 1) / (root + 1)
    solver = paper_solver("proximal BiO-AIDm", alpha=1 / smoothness, beta=OUTER_STEP, eta=eta, T=10, cg_steps=5)
    start = jnp.zeros((10, rows.features.shape[1]), rows.features.dtype)
    undecided = jnp.zeros(TRAIN, rows.features.dtype)
    result = minimize(problem, solver, undecided, start, steps=steps, callbacks=callbacks)

    exact = Nesterov(1 / smoothness, eta, steps=2000)
    weights, wrong = np.asarray(jax.nn.sigmoid(result.x)), train.labels != clean.labels

    def test_accuracy(problem: Problem, logits: Array) -> float:
        fitted = exact.solve(problem, logits, start)[0]
        return float(np.mean(np.argmax(test.features @ np.asarray(fitted).T, axis=1) == test.labels))

    def row(name: str, problem: Problem, logits: Array) -> dict[str, Any]:
        return {"trained on": name, "test accuracy": test_accuracy(problem, logits)}

    both = datasets.Labelled(*(np.concatenate(parts) for parts in zip(train, trusted, strict=True)))
    certain = jnp.full_like(undecided, 20.0)
    learned = jnp.concatenate([result.x, certain[:TRUSTED]])
    table = [
        row("noisy rows", problem, undecided),
        row("trusted rows", hyper_cleaning(trusted, trusted, RIDGE), certain[:TRUSTED]),
        row("noisy rows, learned weights", problem, result.x),
        row("the same and the trusted rows", hyper_cleaning(both, trusted, RIDGE), learned),
        row("true labels (not known in life)", hyper_cleaning(clean, trusted, RIDGE), certain),
    ]
    return Demo(result, weights, wrong, table)


def detection(weights: Float[np.ndarray, " train"], wrong: Bool[np.ndarray, " train"]) -> dict[str, float]:
    """How well a weight below 1/2 tells a wrong label: precision, recall and F1, and the mean weight of either kind."""
    flagged = weights < 0.5
    hits = float(np.sum(flagged & wrong))
    return {
        "flagged": int(flagged.sum()),
        "precision": hits / max(1, int(flagged.sum())),
        "recall": hits / max(1, int(wrong.sum())),
        "F1": 2 * hits / max(1, int(flagged.sum()) + int(wrong.sum())),
        "mean weight, right labels": float(weights[~wrong].mean()),
        "mean weight, wrong labels": float(weights[wrong].mean()) if wrong.any() else float("nan"),
    }
