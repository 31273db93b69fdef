"""What decisions teach: 100 of them in the suggested order, against 100 about rows drawn at random.

    python benchmarks/cleaning.py review --data FOLDER --keep review.json [--seeds 5] [--only vehicle] [--rows 1200]
    python benchmarks/cleaning.py review --data FOLDER --keep once.json --once

FOLDER is that of `cleaning.py tables`; digits are scikit-learn's; `human` has the labels of people. Each table starts
without a trusted row. Somebody who knows the truth decides 100 rows, in the order of `review_order_` or in a random
one, and the table is cleaned again. F1 is that of the rows flagged, on rows that neither of the two decided, before and
after. Each result is written to `--keep` when it is there, and not computed again. To save time, `--once` takes the
settings (bandwidth and ridge), and the comparison of weightings, on which no flag depends, from the first of the three
fits.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from sklearn.metrics import f1_score

import cleaning_tables
from proxbi import datasets
from proxbi.cleaning import LabelCleaner
from proxbi.cleaning.method import samples, selection

TABLES = ("vehicle", "spam", "satellite", "human", "letter", "digits")
KINDS = ("sym20", "instance20", "pair20")
DECISIONS = 100

Row = dict[str, Any]


def load(name: str, folder: Path, seed: int, rows: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Rows in an order of the seed, cut to so many, their true classes and, of people, their labels."""
    if name == "digits":
        table = datasets.digits()
        order = np.random.default_rng([7, seed]).permutation(len(table.labels))[:rows]
        return table.features[order], table.labels[order].astype(int), {}
    features, truth, people = cleaning_tables.load(name, folder, seed)
    return features[:rows], truth[:rows], {kind: labels[:rows] for kind, labels in dict(people).items()}


def loop(features: np.ndarray, truth: np.ndarray, given: np.ndarray, seed: int) -> Row:
    """F1 before, and after the decisions in either order."""
    first = LabelCleaner().fit(features, given)
    drawn = np.random.default_rng([17, seed]).permutation(len(truth))
    orders = {"suggested": first.review_order_[:DECISIONS], "random": drawn[:DECISIONS]}
    rest = np.setdiff1d(np.arange(len(truth)), np.concatenate(list(orders.values())))
    wrong = given != truth

    def score(cleaner: LabelCleaner) -> float:
        return float(f1_score(wrong[rest], cleaner.is_issue_[rest], zero_division=0.0))

    row: Row = {"before": score(first)}
    for name, decided in orders.items():
        labels = given.copy()
        labels[decided] = truth[decided]
        row[name] = score(LabelCleaner().fit(features, labels, trusted=decided, given=given))
        row[f"{name} found"] = int(wrong[decided].sum())
    return row


@contextmanager
def settings_once() -> Iterator[None]:
    """Within it, settings and weightings are solved for and compared by the first fit only."""
    with (
        patch.object(samples, "tune", cache_of_one(samples.tune)),
        patch.object(selection, "hold", cache_of_one(selection.hold)),
    ):
        yield


def cache_of_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """It returns what its first call returned, whatever the arguments."""
    first: list[Any] = []

    def again(*arguments: Any, **options: Any) -> Any:
        if not first:
            first.append(function(*arguments, **options))
        return first[0]

    return again


def summary(kept: dict[str, Row]) -> None:
    """Means by table, and the difference of the two orders with its standard error over the tables' cells."""
    frame = pd.DataFrame(
        [dict(zip(("table", "kind", "seed"), name.split("/"), strict=True)) | row for name, row in kept.items()]
    )
    columns = ["before", "random", "suggested", "random found", "suggested found"]
    print(frame.groupby(["table", "kind"])[columns].mean().round(3).to_string())
    print(frame.groupby("table")[columns].mean().round(3).to_string())
    for what, gain in (("cells", frame), ("tables", frame.groupby("table").mean(numeric_only=True))):
        apart = gain["suggested"] - gain["random"]
        error = apart.std() / np.sqrt(len(apart))
        print(f"suggested less random, over {len(apart)} {what}: {apart.mean():.4f} +- {error:.4f}")


def main(arguments: list[str]) -> None:
    """Compute what is missing, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, default=Path("cleaning_review.json"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--once", action="store_true", help="solve for settings once a cell; keep apart")
    parser.add_argument("--rows", type=int, default=1200, help="the most rows of a table")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--kinds", nargs="+", choices=cleaning_tables.KINDS, default=KINDS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    summary(cleaning_tables.collected(options.keep, lambda kept: results_of_all(options, kept)))


def results_of_all(options: argparse.Namespace, kept: dict[str, Row]) -> Iterator[tuple[str, Row]]:
    """Those of all cells that are not kept yet."""
    for seed in range(options.first, options.first + options.seeds):
        for table in options.only:
            features, truth, people = load(table, options.data, seed, options.rows)
            for kind in people or options.kinds:
                name = f"{table}/{kind}/{seed}"
                if name not in kept:
                    given, _ = cleaning_tables.spoil(kind, features, truth, people, seed)
                    with settings_once() if options.once else nullcontext():
                        row = loop(features, truth, given, seed)
                    yield name, row
