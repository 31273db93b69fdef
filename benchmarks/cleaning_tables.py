"""Real tables with the kinds of noise that people have: proxbi with 5 %, 50 and no trusted rows, against cleanlab.

    python benchmarks/cleaning.py tables --data FOLDER --keep results.json [--seeds 3] [--only letter spam]

FOLDER has letter.npz, satellite.npz, spam.npz, vehicle.npz (X, y) and human_images.npz (X, truth and labels by human
votes); MNIST is where `proxbi.datasets` finds it. Letter and MNIST are cut to 5,000 rows. Each result is written to
`--keep` when it is there, and not computed again.

Rivals see the labels as they were given, all of them: cleanlab on 5-fold probabilities of logistic regression ("lr"),
a random forest ("rf") and boosted trees ("gbt"); and "rfx2", the forest once more without the rows flagged the first
time. Everyone is scored on the same rows, those that are not trusted.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from proxbi import datasets
from proxbi.cleaning import LabelCleaner

TABLES = ("vehicle", "human", "spam", "satellite", "letter", "mnist")
KINDS = ("sym10", "sym20", "sym40", "pair20", "pair40", "one30", "instance20", "annotator", "clean")
HUMAN = ("worse_label", "random_label1", "clean")
MOST_ROWS, SMALL = 5000, 2000
"""Rows that letter and MNIST are cut to, and below which a table has more seeds."""
TRUSTED = {"P5": 0.05, "P50": 50, "P0": 0}
MODELS: dict[str, Callable[[], Any]] = {
    "lr": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    "rf": lambda: RandomForestClassifier(100, n_jobs=-1, random_state=0),
    "gbt": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
}
Row = dict[str, Any]


class Cell(NamedTuple):
    """A table with noise."""

    table: str
    kind: str
    seed: int
    features: np.ndarray
    truth: np.ndarray
    given: np.ndarray
    groups: np.ndarray | None

    @property
    def name(self) -> str:
        """Of the cell, in the file of results."""
        return f"{self.table}/{self.kind}/{self.seed}"


def load(name: str, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | dict[str, np.ndarray]]:
    """Rows, true classes and, of human votes, all labels that were given."""
    order = np.random.default_rng([7, seed])
    if name == "mnist":
        train = datasets.mnist().train
        rows = order.permutation(len(train.labels))[:MOST_ROWS]
        return train.features[rows], train.labels[rows].astype(int), {}
    file = np.load(folder / ("human_images.npz" if name == "human" else f"{name}.npz"))
    truth = file["truth"].astype(int) if name == "human" else np.unique(file["y"], return_inverse=True)[1]
    rows = order.permutation(len(truth))[: MOST_ROWS if name == "letter" else None]
    votes = {kind: file[kind].astype(int)[rows] for kind in HUMAN if kind in file}
    return file["X"].astype(np.float32)[rows], truth[rows], votes


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All that are asked for."""
    for name in options.only or TABLES:
        for seed in range(options.first, options.first + 100):
            features, truth, votes = load(name, options.data, seed)
            if seed - options.first >= (options.small_seeds if len(truth) < SMALL else options.seeds):
                break
            for kind in HUMAN if name == "human" else KINDS:
                if options.kinds and kind not in options.kinds:
                    continue
                given, groups = spoil(kind, features, truth, votes, seed)
                yield Cell(name, kind, seed, features, truth, given, groups)


def spoil(
    kind: str, features: np.ndarray, truth: np.ndarray, votes: Any, seed: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Labels with this kind of noise, and the annotator of each where there are several."""
    draw = np.random.default_rng([11, seed, sum(map(ord, kind))])
    rows, classes = len(truth), int(truth.max()) + 1
    if kind in votes:
        return votes[kind], None
    digits = "".join(letter for letter in kind if letter.isdigit())
    name, rate = kind.rstrip("0123456789"), int(digits or 0) / 100
    groups = draw.integers(5, size=rows) if name == "annotator" else None
    rates = np.full(rows, rate)
    if groups is not None:  # one of five is wrong six times in ten, the others twice in a hundred
        rates = np.where(groups == 0, 0.6, 0.02)
    if name == "one":  # of every second class only, and always to the next
        rates = np.where(truth % 2 == 0, rate, 0)
    chosen = draw.random(rows) < rates
    if name == "instance":  # rows that look like another class, which is the label they get
        other, likeness = _look_alikes(features, truth)
        chance = likeness / likeness.sum()
        chosen = np.isin(np.arange(rows), draw.choice(rows, int(rate * rows), replace=False, p=chance))
        return np.where(chosen, other, truth), groups
    shift = np.ones(rows, int) if name in ("pair", "one") else draw.integers(1, classes, rows)
    return np.where(chosen, (truth + shift) % classes, truth), groups


def _look_alikes(features: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class that each row looks most like beside its own, and how much, by the votes of a forest out of bag."""
    trees = RandomForestClassifier(200, oob_score=True, n_jobs=-1, random_state=1).fit(features, truth)
    votes = np.nan_to_num(trees.oob_decision_function_)
    votes[np.arange(len(truth)), truth] = -1
    return votes.argmax(axis=1), votes.max(axis=1) + 0.02


def trusted_rows(rows: int, how: str, seed: int) -> np.ndarray:
    """Which are: nested, the fewer among the more."""
    number = TRUSTED[how] if TRUSTED[how] >= 1 else int(TRUSTED[how] * rows)
    return np.isin(np.arange(rows), np.random.default_rng([13, seed]).permutation(rows)[:number])


def rivals(cell: Cell, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    """Name, flags, quality and seconds of each."""
    everyone = np.ones(len(cell.given), bool)
    for name in names:
        start, model = time.perf_counter(), MODELS[name]
        chances = out_of_fold(model, cell, everyone)
        flags = find_label_issues(cell.given, chances, n_jobs=1)
        yield name, flags, get_label_quality_scores(cell.given, chances), time.perf_counter() - start
        if name == "rf":
            chances = out_of_fold(model, cell, ~flags)
            flags = find_label_issues(cell.given, chances, n_jobs=1)
            yield "rfx2", flags, get_label_quality_scores(cell.given, chances), time.perf_counter() - start


def out_of_fold(model: Callable[[], Any], cell: Cell, kept: np.ndarray) -> np.ndarray:
    """Probabilities of each row by a model of the rows kept in the other four fifths."""
    chances = np.zeros((len(cell.given), int(max(cell.given.max(), cell.truth.max())) + 1))
    for rest, fold in StratifiedKFold(5, shuffle=True, random_state=0).split(cell.features, cell.given):
        fitted = model().fit(cell.features[rest[kept[rest]]], cell.given[rest[kept[rest]]])
        chances[np.ix_(fold, fitted.classes_)] = fitted.predict_proba(cell.features[fold])
    return (chances + 1e-9) / (chances + 1e-9).sum(axis=1, keepdims=True)


def score(cell: Cell, given: np.ndarray, rows: np.ndarray, flags: np.ndarray, quality: np.ndarray) -> Row:
    """How well the wrong labels among some rows were found."""
    wrong, flags, quality = (given != cell.truth)[rows], flags[rows], quality[rows]
    found: Row = {"rate": float(wrong.mean()), "flagged": float(flags.mean()), "ece": calibration_error(wrong, quality)}
    if wrong.any():
        worst_first = np.cumsum(wrong[np.argsort(quality, kind="stable")])
        best = 2 * worst_first / (np.arange(1, len(wrong) + 1) + wrong.sum())
        found["f1"] = float(2 * np.sum(wrong & flags) / (wrong.sum() + flags.sum()))
        found |= {"best": float(best.max()), "ap": float(average_precision_score(wrong, -quality))}
    return found


def calibration_error(wrong: np.ndarray, quality: np.ndarray) -> float:
    """Of 20 bins of equal mass: the mean of how far the mean quality is from the share that is right."""
    bins = np.array_split(np.argsort(quality, kind="stable"), 20)
    return float(sum(len(each) * abs(1 - wrong[each].mean() - quality[each].mean()) for each in bins) / len(wrong))


def ours(cell: Cell, how: str) -> Row:
    """`LabelCleaner` with no option set."""
    trusted = trusted_rows(len(cell.truth), how, cell.seed)
    given = np.where(trusted, cell.truth, cell.given)
    start = time.perf_counter()
    cleaner = LabelCleaner().fit(cell.features, given, trusted=trusted if trusted.any() else None, groups=cell.groups)
    seconds = time.perf_counter() - start
    rate = cleaner.noise_rate_
    row = score(cell, given, ~trusted, cleaner.is_issue_, cleaner.label_quality_)
    return row | {"seconds": seconds, "estimate": rate.estimate, "low": rate.low, "high": rate.high}


def results_of(cell: Cell, kept: dict[str, Row], names: Iterable[str]) -> Iterator[tuple[str, Row]]:
    """Those that are not kept yet."""
    for how in TRUSTED:
        if f"{cell.name}/{how}" not in kept:
            yield how, ours(cell, how)
    missing = [name for name in names if f"{cell.name}/{name}/P0" not in kept]
    for name, flags, quality, seconds in rivals(cell, missing):
        for how in TRUSTED:
            rows = ~trusted_rows(len(cell.truth), how, cell.seed)
            yield f"{name}/{how}", score(cell, cell.given, rows, flags, quality) | {"seconds": seconds}


def summary(kept: dict[str, Row]) -> None:
    """Tables of means."""
    heads = ["table", "kind", "seed", "method", "how"]
    rows = []
    for name, row in kept.items():
        parts = name.split("/")
        rows.append(dict(zip(heads, parts if len(parts) == 5 else [*parts[:3], "proxbi", parts[3]], strict=True)) | row)
    frame = pd.DataFrame(rows)
    frame["sort"] = frame["kind"].str.rstrip("0123456789")
    frame["covers"] = ((frame["low"] <= frame["rate"]) & (frame["rate"] <= frame["high"])).where(frame["low"].notna())
    frame["width"], frame["unknown"] = frame["high"] - frame["low"], frame["low"].isna()
    mine, noisy = frame["method"] == "proxbi", frame["kind"] != "clean"
    print("mean over noisy cells\n", _means(frame[noisy], ["how", "method"], ["f1", "best", "ap", "ece", "seconds"]))
    print("average precision by kind\n", frame[noisy].pivot_table("ap", "sort", ["how", "method"]).round(3).to_string())
    print("clean rows flagged\n", frame[~noisy].pivot_table("flagged", "table", ["how", "method"]).round(3).to_string())
    print("by kind, proxbi\n", _means(frame[mine], ["how", "sort"], ["f1", "best", "ece", "covers", "unknown"]))
    print("intervals\n", _means(frame[mine], ["how"], ["covers", "unknown", "ece"]))
    print("median width\n", frame[mine].groupby("how")["width"].median().round(3).to_string())


def _means(frame: pd.DataFrame, by: list[str], columns: list[str]) -> str:
    return frame.groupby(by)[columns].mean().astype(float).round(3).to_string()


def main(arguments: list[str]) -> None:
    """Compute what is missing, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, default=Path("cleaning_tables.json"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--small-seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", nargs="+", choices=TABLES)
    parser.add_argument("--kinds", nargs="+", choices=sorted({*KINDS, *HUMAN}))
    parser.add_argument("--rivals", nargs="*", choices=MODELS, default=list(MODELS), help="rfx2 comes with rf")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    summary(collected(options.keep, lambda kept: results_of_all(options, kept)))


def results_of_all(options: argparse.Namespace, kept: dict[str, Row]) -> Iterator[tuple[str, Row]]:
    """Those of all cells that are not kept yet."""
    for cell in cells(options):
        for name, row in results_of(cell, kept, options.rivals):
            yield f"{cell.name}/{name}", row


def collected(path: Path, missing: Callable[[dict[str, Row]], Iterator[tuple[str, Row]]]) -> dict[str, Row]:
    """The results in a file, and those that are missing from them: each is written when it is there."""
    kept: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    for name, row in missing(kept):
        kept[name] = row
        path.write_text(json.dumps(kept))
        print(name, {key: round(value, 4) for key, value in row.items()}, flush=True)
    return kept
