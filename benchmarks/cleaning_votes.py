"""Several votes a row: the consensus of proxbi against majority, Dawid-Skene and cleanlab's multiannotator (CROWDLAB).

    python benchmarks/cleaning.py votes --data FOLDER [--seeds 5] [--only human digits] [--kinds bad copies]
    python benchmarks/cleaning.py votes --data FOLDER --only human --trusted 100 --without-rivals --keep trusted.json
    python benchmarks/cleaning.py votes --only rates --seeds 5    # 20 annotators: how often intervals cover their rates

FOLDER has human_images.npz, with three votes a row by many people and no word of who voted, and satellite.npz,
letter.npz and vehicle.npz, whose annotators are simulated, as those of digits and wine, and of "nothing": features
drawn at random that say nothing about three classes. Each seed draws 2,000 rows, of nothing 400. "covered" is the share
of annotators whose rate, where they have one for all classes, is in its interval. Each result is written to `--keep`
when it is there, and not computed again.

cleanlab is given 5-fold probabilities of logistic regression on the features as they are ("lr") and on standardised
ones ("lrs"), and of a random forest ("rf"), all of them trained on the majority. Where no row has two votes it refuses,
and counts as the majority. Dawid-Skene is the plain one: full confusions, a hundredth of a vote as prior, 100 rounds.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from cleanlab.multiannotator import get_label_quality_multiannotator
from scipy.special import softmax
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cleaning_tables
from proxbi import datasets
from proxbi.cleaning import LabelCleaner

ROWS = 2000
FEW = 400
TABLES = ("human", "digits", "wine", "nothing", "vehicle", "satellite", "letter", "rates")
MISSING = ("0", "1", "2")
"""Of three human votes."""
KINDS = ("good", "bad", "spam", "copies", "classes", "crowd")
RATES = {"good": (0.05, 0.1, 0.15, 0.2), "bad": (0.1, 0.3, 0.5, 0.6)}
MODELS: dict[str, Callable[[], Any]] = {
    "lr": lambda: LogisticRegression(max_iter=300),
    "lrs": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
    "rf": lambda: RandomForestClassifier(100, n_jobs=-1, random_state=0),
}
Row = dict[str, Any]
Table = np.ndarray
"""Of votes, rows by annotators: classes, -1 where there is none."""


class Cell(NamedTuple):
    """Rows and their votes."""

    name: str
    features: np.ndarray
    truth: np.ndarray
    votes: Table
    rates: np.ndarray | None = None
    """How often each annotator is wrong, where all wrong votes are alike."""

    @property
    def classes(self) -> int:
        """How many."""
        return int(max(self.truth.max(), self.votes.max())) + 1


def load(name: str, folder: Path | None, seed: int) -> tuple[np.ndarray, np.ndarray, Table | None]:
    """Rows drawn at random: features, true classes and, of people, votes."""
    draw = np.random.default_rng([17, seed])
    if name in ("digits", "rates"):
        rows = datasets.digits()
        some = draw.permutation(len(rows.labels))[:ROWS]
        return rows.features[some], rows.labels[some], None
    if name == "wine":
        features, truth = load_wine(return_X_y=True)
        some = draw.permutation(len(truth))
        return features[some], truth[some], None
    if name == "nothing":
        return draw.normal(size=(FEW, 5)), draw.integers(3, size=FEW), None
    if folder is None:
        raise SystemExit(f"--data must name the folder of the table {name}.")
    file = np.load(folder / ("human_images.npz" if name == "human" else f"{name}.npz"))
    truth = file["truth"].astype(int) if name == "human" else np.unique(file["y"], return_inverse=True)[1]
    some = draw.permutation(len(truth))[:ROWS]
    votes = None
    if name == "human":
        votes = np.stack([file[f"random_label{i}"] for i in (1, 2, 3)], axis=1).astype(int)[some]
    return file["X"].astype(np.float32)[some], truth[some], votes


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All that are asked for."""
    for name in options.only or TABLES:
        kinds = MISSING if name == "human" else ("rates",) if name == "rates" else KINDS
        for seed in range(options.first, options.first + options.seeds):
            for kind in kinds:
                if options.kinds and kind not in options.kinds:
                    continue
                features, truth, votes = load(name, options.data, seed)
                draw = np.random.default_rng([19, seed, sum(map(ord, kind))])
                given, rates = (without(votes, int(kind), draw), None) if votes is not None else vote(kind, truth, draw)
                yield Cell(f"{name}/{kind}/{seed}", features, truth, given, rates)


def without(votes: Table, missing: int, draw: np.random.Generator) -> Table:
    """The votes, as many of each row missing at random."""
    left = votes.copy()
    np.put_along_axis(left, np.argsort(draw.random(votes.shape), axis=1)[:, :missing], -1, axis=1)
    return left


def vote(kind: str, truth: np.ndarray, draw: np.random.Generator) -> tuple[Table, np.ndarray | None]:
    """Simulated annotators, and their rates if these are the same for all classes."""
    classes = int(truth.max()) + 1

    def wrong(rate: float, shift: int | None = None) -> np.ndarray:
        by = draw.integers(1, classes, len(truth)) if shift is None else shift
        return np.where(draw.random(len(truth)) < rate, (truth + by) % classes, truth)

    if kind == "rates":
        rates = draw.uniform(0.02, 0.6, 20)
        full = np.stack([wrong(rate) for rate in rates], axis=1)
        numbers = draw.integers(30, 501, 20)
        places = np.argsort(np.argsort(draw.random(full.shape), axis=0), axis=0)
        return np.where(places < numbers, full, -1), rates
    if kind == "crowd":  # 30 annotators of all kinds, two votes a row
        rates = draw.uniform(0.05, 0.6, 30)
        return without(np.stack([wrong(rate) for rate in rates], axis=1), 28, draw), rates
    if kind in RATES:
        return without(np.stack([wrong(rate) for rate in RATES[kind]], axis=1), 1, draw), np.array(RATES[kind])
    columns = {
        "spam": lambda: [wrong(0.15), wrong(0.25), draw.integers(classes, size=len(truth)), np.zeros(len(truth), int)],
        "copies": lambda: copies([wrong(rate) for rate in (0.15, 0.2, 0.35)], draw),
        "classes": lambda: [wrong(0.1), wrong(0.35, 1), np.where(truth % 2, wrong(0.6), wrong(0.02)), wrong(0.3, 2)],
    }[kind]()
    return without(np.stack(columns, axis=1), 1, draw), None


def copies(columns: list[np.ndarray], draw: np.random.Generator) -> list[np.ndarray]:
    """And one who copies the last of them, eight times in ten."""
    return [*columns, np.where(draw.random(len(columns[0])) < 0.8, columns[-1], columns[0])]


def counts(votes: Table, classes: int) -> np.ndarray:
    """Votes for each class."""
    return np.stack([np.sum(votes == each, axis=1) for each in range(classes)], axis=1)


def majority(votes: Table, classes: int) -> np.ndarray:
    """Ties are broken at random."""
    total = counts(votes, classes)
    return np.argmax(total + 0.5 * np.random.default_rng(23).random(total.shape), axis=1)


def dawid_skene(votes: Table, classes: int) -> np.ndarray:
    """Maximum likelihood confusions of each annotator, by expectation maximisation from the shares of votes."""
    one_hot = np.eye(classes + 1)[votes][:, :, :classes]
    shares = counts(votes, classes) + 1e-9
    shares = shares / shares.sum(axis=1, keepdims=True)
    for _ in range(100):
        confusion = np.einsum("it,ijg->jtg", shares, one_hot) + 0.01
        confusion /= confusion.sum(axis=2, keepdims=True)
        logs = np.einsum("ijg,jtg->it", one_hot, np.log(confusion))
        shares = softmax(np.log(shares.mean(axis=0) + 1e-9) + logs, axis=1)
    return shares.argmax(axis=1)


def out_of_fold(model: Callable[[], Any], features: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities by models of the other four fifths."""
    chances = np.full((len(labels), classes), 1e-9)
    for rest, fold in StratifiedKFold(5, shuffle=True, random_state=0).split(features, labels):
        fitted = model().fit(features[rest], labels[rest])
        chances[np.ix_(fold, fitted.classes_)] += fitted.predict_proba(features[fold])
    return chances / chances.sum(axis=1, keepdims=True)


def crowdlab(votes: Table, chances: np.ndarray) -> np.ndarray:
    """The consensus of cleanlab."""
    table = pd.DataFrame(np.where(votes < 0, np.nan, votes.astype(float)))
    found = get_label_quality_multiannotator(table, chances, verbose=False)
    return found["label_quality"]["consensus_label"].to_numpy(int)


def rivals(cell: Cell) -> Iterator[tuple[str, np.ndarray]]:
    """Name and consensus of each."""
    most = majority(cell.votes, cell.classes)
    yield "majority", most
    yield "Dawid-Skene", dawid_skene(cell.votes, cell.classes)
    several = np.sum(cell.votes >= 0, axis=1).max() > 1
    for name, model in MODELS.items() if several else ():
        yield f"cleanlab {name}", crowdlab(cell.votes, out_of_fold(model, cell.features, most, cell.classes))


def results_of(cell: Cell, kept: dict[str, Row], only_ours: bool, trusted: int) -> Iterator[tuple[str, Row]]:
    """Those that are not kept yet; accuracies of rows that have a vote and are not trusted."""
    sure = np.random.default_rng([29, int(cell.name[-1])]).permutation(len(cell.truth)) < trusted
    voted = np.any(cell.votes >= 0, axis=1) & ~sure
    if f"{cell.name}/proxbi" not in kept:
        yield "proxbi", ours(cell, voted, sure)
    if not only_ours and not cell.name.startswith("rates/") and f"{cell.name}/majority" not in kept:
        for name, labels in rivals(cell):
            yield name, {"accuracy": float(np.mean(labels[voted] == cell.truth[voted]))}


def ours(cell: Cell, voted: np.ndarray, sure: np.ndarray) -> Row:
    """`LabelCleaner` with no option set."""
    start = time.perf_counter()
    votes = np.where(cell.votes < 0, np.nan, cell.votes.astype(float))
    known = np.where(sure[:, None], cell.truth[:, None], votes)
    trusted = {"trusted": sure, "given": votes} if sure.any() else {}
    cleaner = LabelCleaner().fit(cell.features, known, **trusted)
    right, quality = (cleaner.consensus_label_ == cell.truth)[voted], cleaner.consensus_quality_[voted]
    row = {"accuracy": float(right.mean()), "quality": float(quality.mean())}
    row["ece"] = cleaning_tables.calibration_error(~right, quality)
    rates = np.array([each.rate.estimate for each in cleaner.annotator_noise_.values()])
    wrong = np.array([np.mean((column != cell.truth)[column >= 0]) for column in cell.votes.T])
    row |= {"rate": float(rates.mean()), "rate by truth": float(wrong.mean())}
    row["seconds"] = time.perf_counter() - start
    if cell.rates is not None:
        found = np.array([each.rate for each in cleaner.annotator_noise_.values()])
        row["covered"] = float(np.mean((found[:, 1] <= cell.rates) & (cell.rates <= found[:, 2])))
        row["width"] = float(np.mean(found[:, 2] - found[:, 1]))
    return row


def summary(kept: dict[str, Row]) -> None:
    """Mean accuracies, and how far proxbi is ahead of the best of the others, with the standard error over seeds."""
    parts = [dict(zip(("table", "kind", "seed", "method"), name.split("/"), strict=True)) for name in kept]
    frame = pd.DataFrame([part | row for part, row in zip(parts, kept.values(), strict=True)])
    table = frame.pivot_table("accuracy", ["table", "kind"], "method", sort=False)
    for case, means in table.iterrows():
        others = means.drop("proxbi").dropna()
        if others.empty:
            continue
        here = frame[(frame["table"] == case[0]) & (frame["kind"] == case[1])]
        seeds = here.pivot_table("accuracy", "seed", "method")
        ahead = seeds["proxbi"] - seeds[others.idxmax()]
        table.loc[case, "ahead"] = ahead.mean()
        table.loc[case, "error"] = ahead.std() / np.sqrt(len(ahead))
    print(table.round(4).to_string())
    measured = [
        name for name in ("quality", "ece", "rate", "rate by truth", "covered", "width", "seconds") if name in frame
    ]
    mine = frame[frame["method"] == "proxbi"].groupby(["table", "kind"], sort=False)
    print(mine[measured].mean().round(3).to_string())


def main(arguments: list[str]) -> None:
    """Compute what is missing, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--keep", type=Path, default=Path("cleaning_votes.json"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", nargs="+", choices=TABLES)
    parser.add_argument("--kinds", nargs="+", choices=(*MISSING, *KINDS, "rates"))
    parser.add_argument("--without-rivals", action="store_true")
    parser.add_argument("--trusted", type=int, default=0, help="rows of each cell whose class is known; keep apart")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    summary(cleaning_tables.collected(options.keep, lambda kept: results_of_all(options, kept)))


def results_of_all(options: argparse.Namespace, kept: dict[str, Row]) -> Iterator[tuple[str, Row]]:
    """Those of all cells that are not kept yet."""
    for cell in cells(options):
        for name, row in results_of(cell, kept, options.without_rivals, options.trusted):
            yield f"{cell.name}/{name}", row
