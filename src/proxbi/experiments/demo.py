"""Digits with spoiled labels to clean, and how well it went: the first thing a new user sees work."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from proxbi import datasets
from proxbi.cleaning.estimator.models import KernelModel
from proxbi.cleaning.files.decisions import Decided, Subject, write_decisions
from proxbi.cleaning.files.job import Job
from proxbi.cleaning.inputs.prepare import Inputs
from proxbi.cleaning.result import Cleaned

TRAIN, TRUSTED, DECIDED = 1000, 200, 100
SIDE = 8


class Spoiled(NamedTuple):
    """An npz file for `proxbi clean`, and the truth, which is unknown in practice."""

    arrays: dict[str, np.ndarray]
    truth: Int[np.ndarray, " train"]
    test: tuple[Shaped[np.ndarray, "test side side"], Int[np.ndarray, " test"]]


def spoiled_digits(rate: float, seed: int) -> Spoiled:
    """Of scikit-learn's digits 1,000 rows, a share `rate` of their labels spoiled, 200 trusted and 597 for a test."""
    rows = datasets.digits()
    images = rows.features[:, : SIDE * SIDE].reshape(-1, SIDE, SIDE)
    order = np.random.default_rng(seed).permutation(len(rows.labels))
    train, trusted, test = np.split(order, [TRAIN, TRAIN + TRUSTED])
    truth = rows.labels[train]
    arrays = {
        "X": images[train],
        "y": datasets.symmetric_noise(truth, rate, seed),
        "X_val": images[trusted],
        "y_val": rows.labels[trusted],
    }
    return Spoiled(arrays, truth, (images[test], rows.labels[test]))


def detection(flagged: Bool[np.ndarray, " train"], wrong: Bool[np.ndarray, " train"]) -> dict[str, Any]:
    """How well the flags find the wrong labels: precision, recall and F1."""
    hits = float(np.sum(flagged & wrong))
    return {
        "spoiled": int(wrong.sum()),
        "flagged": int(flagged.sum()),
        "precision": hits / max(1, int(flagged.sum())),
        "recall": hits / max(1, int(wrong.sum())),
        "F1": 2 * hits / max(1, int(flagged.sum()) + int(wrong.sum())),
    }


def detection_of(spoiled: Spoiled, cleaned: Cleaned) -> dict[str, Any]:
    """`detection` among the rows that nobody decided."""
    open_rows = ~cleaned.trusted[: len(spoiled.truth)]
    wrong = spoiled.arrays["y"] != spoiled.truth
    return detection(cleaned.issue[: len(wrong)][open_rows], wrong[open_rows])


def decide(path: Path, spoiled: Spoiled, job: Job) -> None:
    """Write decisions, made from the true labels, about the rows that teach most."""
    rows = np.sort(job.cleaned.review[:DECIDED])
    about = Subject("digits.npz", job.summary["digest"], spoiled.arrays["y"])
    write_decisions(path, about, Decided(rows, spoiled.truth[rows]))


def accuracies(spoiled: Spoiled, inputs: Inputs, cleaned: Cleaned, seed: int) -> list[dict[str, Any]]:
    """The accuracy on the test rows of the same model fitted to the rows as they came, to those kept, and to the
    truth.
    """
    images, labels = spoiled.test
    features = inputs.encoder.transform(images)
    truth = np.concatenate([spoiled.truth, spoiled.arrays["y_val"]])
    every = np.ones(len(truth), bool)

    def row(name: str, given: Int[np.ndarray, " rows"], kept: Bool[np.ndarray, " rows"]) -> dict[str, Any]:
        model = KernelModel.tuned(cleaned.settings, seed).fit(inputs.features[kept], given[kept], len(inputs.classes))
        guess = np.argmax(model.predict_proba(features), axis=1)
        return {"trained on the trusted rows and": name, "test accuracy": float(np.mean(guess == labels))}

    return [
        row("no others", inputs.labels, cleaned.trusted),
        row("all others, labels as they came", inputs.labels, every),
        row("those that were kept", inputs.labels, ~cleaned.issue),
        row("all others, true labels (unknown in practice)", truth, every),
    ]
