"""Results as they might come out, made by hand, and the reports of them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from proxbi import datasets
from proxbi.cleaning.inputs.features import Use
from proxbi.cleaning.report.page import Run, Step, write_report
from proxbi.cleaning.result import Cleaned, Interval, NoiseShare, OuterStep, Removal, Score

EVIL = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"&"
DIGITS = [str(digit) for digit in range(10)]
RUN = Run(
    "proxbi clean digits.csv --label y",
    7,
    {"proxbi": "0.1.0", "jax": "0.8.0"},
    "digits.csv (9 bytes)",
    "d1" * 32,
    "2026-11-16 14:00 UTC",
)


class Example(NamedTuple):
    """A result and what was cleaned."""

    cleaned: Cleaned
    given: np.ndarray
    images: np.ndarray
    group_of: np.ndarray


@cache
def digits(rows: int = 600, trusted: int = 100, noise: float = 0.2) -> Example:
    """The first digits; the last `trusted` are right, the labels of the others spoiled, half of them by group 2."""
    data = datasets.digits()
    features, right = data.features[:rows], data.labels[:rows]
    given = right.copy()
    given[:-trusted] = datasets.symmetric_noise(right[:-trusted], noise, seed=0)
    gold = np.arange(rows) >= rows - trusted
    chance = cross_val_predict(LogisticRegression(C=3.0, max_iter=500), features, given, cv=5, method="predict_proba")
    own = chance[np.arange(rows), given]
    quality = (1 - noise) * own / ((1 - noise) * own + noise * (1 - own) / 9)
    issue = ~gold & (quality < 0.5)
    group_of = np.where(issue, np.arange(rows) % 3, np.arange(rows) % 2)
    cleaned = Cleaned(
        weight=np.where(gold, 1.0, np.clip(1.4 * quality - 0.2, 0, 1)),
        quality=quality,
        issue=issue,
        suggested=np.where(issue, chance.argmax(axis=1), given),
        trusted=gold,
        noise_rate=rate(1 - quality[~gold]),
        noise_by_class=[row(c, 1 - quality[~gold & (given == c)]) for c in range(10)],
        noise_by_group=[row(g, 1 - quality[~gold & (group_of == g)]) for g in range(3)],
        scores=[
            score("noisy", 0.905, 0.41),
            score("trusted only", 0.915, 0.33),
            score("trusted posterior", 0.943, 0.24),
            score("trimming", 0.951, 0.21),
            score("knn shapley", 0.947, 0.22),
            score("bilevel", 0.962, 0.18),
        ],
        chosen="bilevel",
        helped=True,
        history=[
            OuterStep(k, 0.2 + 0.3 * 0.8**k, 0.5 * 0.7**k, 0.16 + 0.3 * 0.8**k, 0.19 + 0.27 * 0.8**k, 9 * k)
            for k in range(30)
        ],
        removal=[Removal(d, 0.2 + (d - 105) ** 2 / 1e5, 0.96 - (d - 105) ** 2 / 1e6) for d in range(0, 250, 25)],
        warnings=["Class 4 has only 7 trusted rows: its noise rate is uncertain."],
        settings={
            "noise rate": 0.198,
            "bandwidth": 0.031,
            "ridge": 0.27,
            "temperature": 8.1,
            "kernel": "gaussian",
            "seed": 0,
        },
        review=np.flatnonzero(~gold)[::-1],
    )
    images = features[:, :64].reshape(rows, 8, 8)
    return Example(cleaned, given, images, group_of)


def rate(wrong: np.ndarray) -> Interval:
    estimate, error = float(np.mean(wrong)), 1.96 * float(np.std(wrong)) / np.sqrt(len(wrong))
    return Interval(estimate, max(0.0, estimate - error), min(1.0, estimate + error))


def row(code: int, wrong: np.ndarray) -> NoiseShare:
    return NoiseShare(code, len(wrong), rate(wrong))


def score(name: str, accuracy: float, loss: float) -> Score:
    return Score(name, accuracy, 0.02, loss, 0.03)


def random(rows: int, classes: int, flagged: int, seed: int = 0) -> Example:
    """A result of any size, with nothing learned in it: the first `flagged` rows are, and there are no trusted ones."""
    draw = np.random.default_rng(seed)
    given = draw.integers(0, classes, rows)
    issue = np.arange(rows) < flagged
    suggested = np.where(issue, (given + draw.integers(1, classes, rows)) % classes, given)
    quality = np.where(issue, draw.uniform(0, 0.5, rows), draw.uniform(0.5, 1, rows))
    by_class = [NoiseShare(c, 9, Interval((c + 1) / 200, 0.0, 0.6)) for c in range(classes)]
    nothing: dict[str, list] = {"noise_by_group": [], "scores": [], "history": [], "removal": []}
    made = replace(
        digits().cleaned,
        weight=quality,
        quality=quality,
        issue=issue,
        suggested=suggested,
        trusted=np.zeros(rows, bool),
        review=np.arange(rows),
        noise_by_class=by_class,
        helped=False,
        **nothing,
    )
    return Example(made, given, np.zeros((rows, 8, 8)), np.zeros(rows, int))


def everything(**changed: Any) -> dict[str, Any]:
    """All that a report can take, for the digits."""
    example = digits()
    n = len(example.given)
    frame = pd.DataFrame(
        {
            "ink": np.where(np.arange(n) % 7 == 0, np.nan, example.images.mean(axis=(1, 2))),
            "note": [f'said "{k}", then left' for k in range(n)],
            "count": 3 * np.arange(n)[::-1],
        }
    )
    return {
        "cleaned": example.cleaned,
        "labels": DIGITS,
        "given": example.given,
        "ids": [f"id-{k}" for k in range(n)],
        "groups": ["ann", "bob", "carl"],
        "group_of": example.group_of,
        "images": example.images,
        "frame": frame,
        "features": example.images.reshape(n, -1),
        "uses": [Use("ink", "number", "some are missing"), Use("digit", "", "the labels")],
        "steps": [Step("Run again.", "proxbi clean digits.csv --label y --decisions decisions.csv")],
        "title": "Digits",
        "run": RUN,
    } | changed


def report(folder: Path, **changed: Any) -> str:
    path = folder / "report.html"
    arguments = everything(**changed)
    write_report(path, arguments.pop("cleaned"), **arguments)
    return path.read_text(encoding="utf-8")


def evil() -> dict[str, Any]:
    example = digits()
    score = example.cleaned.scores[0]._replace(name=EVIL)
    cleaned = replace(
        example.cleaned, warnings=[EVIL], settings={EVIL: EVIL}, chosen=EVIL, scores=[*example.cleaned.scores, score]
    )
    n = len(example.given)
    frame = pd.DataFrame({EVIL: [EVIL] * n})
    return everything(
        cleaned=cleaned,
        labels=[f"{k}{EVIL}" for k in range(10)],
        ids=[EVIL] * n,
        groups=[EVIL] * 3,
        frame=frame,
        uses=[Use(EVIL, EVIL, EVIL), Use(EVIL, "", EVIL)],
        steps=[Step(EVIL, EVIL)],
        title=EVIL,
        run=Run(EVIL, 7, {EVIL: EVIL}, EVIL, EVIL, EVIL),
    )
