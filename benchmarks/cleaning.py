"""Label cleaning, measured: proxbi's default, with no option set, against cleanlab; also where proxbi loses.

    python benchmarks/cleaning.py mnist --seeds 5           # also --p 0.1 0.2 0.4 and --trusted 5000 250
    python benchmarks/cleaning.py digits --seeds 5
    python benchmarks/cleaning.py digits --seeds 10 --p 0.2 --only --same-seed      # one seed for noise and cleaner
    python benchmarks/cleaning.py scenarios                 # other noise, imbalance, 3 to 100 classes, gaps, groups
    python benchmarks/cleaning.py million                   # a million rows of 50 columns: time and memory
    python benchmarks/cleaning.py tables --data FOLDER      # real tables, other noise: see cleaning_tables.py
    python benchmarks/cleaning.py votes --data FOLDER       # several votes a row: see cleaning_votes.py
    python benchmarks/cleaning.py review --data FOLDER      # what decisions teach: see cleaning_review.py

cleanlab is its `CleanLearning` with 5 folds, on the same rows but without the trusted ones, which it has no use for:
"lr" with the logistic regression that is its default, "ours" with that on our kernel features. Its C is the one of
three with the best accuracy on the trusted rows, a gift. F1 is that of the rows flagged, against the labels that were
spoiled here.
"""

import argparse
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from cleanlab.classification import CleanLearning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

import cleaning_review
import cleaning_tables
import cleaning_votes
from proxbi import datasets
from proxbi.cleaning import LabelCleaner
from proxbi.cleaning.estimator.models import linear_model
from proxbi.cleaning.inputs.features import Encoder
from proxbi.cleaning.method.kernel import choose_landmarks, kernel_map, typical_distance

STRENGTHS = {"lr": (0.03, 0.3, 3.0), "ours": (1.0, 10.0, 100.0)}


class Case(NamedTuple):
    """Rows with spoiled labels."""

    name: str
    table: Any
    given: np.ndarray
    truth: np.ndarray
    trusted: np.ndarray
    test: tuple[Any, np.ndarray] | None = None
    groups: np.ndarray | None = None

    @property
    def wrong(self) -> np.ndarray:
        """Which labels were spoiled."""
        return self.given != self.truth


def ours(case: Case, final: bool, seed: int = 0) -> dict[str, float]:
    """The default of `LabelCleaner`, with this seed."""
    start = time.perf_counter()
    trusted = case.trusted if case.trusted.any() else None
    cleaner = LabelCleaner(random_state=seed).fit(case.table, case.given, trusted=trusted, groups=case.groups)
    seconds = time.perf_counter() - start
    row = _detection(case, cleaner.is_issue_, cleaner.label_quality_) | {"seconds": seconds}
    row |= {"chosen": cleaner.result_.chosen, "rate": cleaner.noise_rate_.estimate}
    if case.test is not None:
        row["accuracy"] = cleaner.score(*case.test)
    if case.test is not None and final:
        encoder = Encoder().fit(case.table)
        kept = ~cleaner.is_issue_
        linear = linear_model(encoder.transform(case.table)[kept], case.given[kept], trusted=case.trusted[kept])
        row["linear"] = float(np.mean(linear.predict(encoder.transform(case.test[0])) == case.test[1]))
    return row


def cleanlab(case: Case, kind: str) -> dict[str, float]:
    """`CleanLearning` on the rows that are not trusted: on the table as it is, with all defaults; or on our encoding of
    it, or our kernel features, with the C that is best on trusted rows (neither is counted in its time).
    """
    names, given = np.unique(case.given, return_inverse=True)
    if kind == "as is":
        return _clean_learning(case, np.asarray(case.table), given, 1.0)
    features = Encoder().fit(case.table).transform(case.table)
    if kind == "ours":
        phi = kernel_map(choose_landmarks(features, 1000, np.random.default_rng(0)), typical_distance(features) / 3)
        features = np.asarray(phi(features))
    strength = _best_strength(features, given, np.searchsorted(names, case.truth), case.trusted, STRENGTHS[kind])
    return _clean_learning(case, features, given, strength)


def _clean_learning(case: Case, features: np.ndarray, given: np.ndarray, strength: float) -> dict[str, float]:
    start = time.perf_counter()
    cleaner = CleanLearning(LogisticRegression(C=strength), cv_n_folds=5, seed=0)
    found = cleaner.fit(features[~case.trusted], given[~case.trusted]).get_label_issues()
    seconds = time.perf_counter() - start
    issue, quality = np.zeros(len(given), bool), np.ones(len(given))
    issue[~case.trusted], quality[~case.trusted] = found["is_label_issue"], found["label_quality"]
    return _detection(case, issue, quality) | {"seconds": seconds}


def _best_strength(features, given, truth, trusted, strengths) -> float:
    if not trusted.any():
        return strengths[1]
    fitted = [LogisticRegression(C=strength).fit(features[~trusted], given[~trusted]) for strength in strengths]
    return strengths[int(np.argmax([model.score(features[trusted], truth[trusted]) for model in fitted]))]


def _detection(case: Case, issue: np.ndarray, quality: np.ndarray) -> dict[str, float]:
    noisy = ~case.trusted
    row = {"flagged": float(issue[noisy].mean())}
    if case.wrong.any():
        row["F1"] = f1_score(case.wrong[noisy], issue[noisy])
        row["AUROC"] = roc_auc_score(case.wrong[noisy], -quality[noisy])
    return row


def mnist(rate: float, trusted: int, seed: int, noisy: int) -> Case:
    """The first 20,000 training rows, or fewer, and trusted ones from row 20,000 on."""
    images = datasets.mnist()
    rows = np.r_[0:noisy, 20_000 : 20_000 + trusted]
    truth = images.train.labels[rows]
    gold = np.arange(len(rows)) >= noisy
    given = truth.copy()
    given[~gold] = datasets.symmetric_noise(truth[~gold], rate, seed)
    test = images.test.features, images.test.labels
    return Case(f"mnist p={rate} trusted={trusted}", images.train.features[rows], given, truth, gold, test)


def digits(rate: Any, seed: int, kind: Any = "symmetric", trusted: int = 300) -> Case:
    """1,000 noisy rows, trusted ones, and the last 497 to test."""
    rows = datasets.digits()
    order = np.random.default_rng(seed).permutation(len(rows.labels))
    train, test = order[: 1000 + trusted], order[1300:]
    truth = rows.labels[train]
    gold = np.arange(len(train)) >= 1000
    given = truth.copy()
    given[~gold] = datasets.add_noise(truth[~gold], kind, rate, seed, classes=10)
    case = Case(f"digits {kind} p={rate}", rows.features[train], given, truth, gold)
    return case._replace(test=(rows.features[test], rows.labels[test]))


def blobs(classes: int, seed: int, rate: float = 0.2, rows: int = 6000) -> Case:
    """Gaussian clouds that overlap, two for each class, in 10 dimensions."""
    draw = np.random.default_rng(seed)
    centers = 1.5 * draw.normal(size=(classes, 2, 10))
    truth = draw.integers(classes, size=rows)
    features = centers[truth, draw.integers(2, size=rows)] + draw.normal(size=(rows, 10))
    gold = np.arange(rows) < max(200, 5 * classes)
    given = truth.copy()
    given[~gold] = datasets.symmetric_noise(truth[~gold], rate, seed)
    return Case(f"{classes} classes p={rate}", features.astype(np.float32), given, truth, gold)


def annotators(seed: int) -> Case:
    """One of five annotators, with a fifth of the rows, is wrong six times in ten; the others twice in a hundred."""
    case = digits(0.0, seed)
    draw = np.random.default_rng(seed)
    groups = draw.integers(5, size=len(case.given))
    given = case.truth.copy()
    for rows, rate in ((groups == 0, 0.6), (groups != 0, 0.02)):
        ours = np.flatnonzero(rows & ~case.trusted)
        given[ours] = datasets.symmetric_noise(case.truth[ours], rate, seed, classes=10)
    return case._replace(name="one bad annotator", given=given, groups=groups)


def imbalanced(seed: int) -> Case:
    """Digits, of which the rarest class has a twentieth of the rows of the most frequent."""
    case = digits(0.0, seed)
    draw = np.random.default_rng(seed)
    kept = draw.random(len(case.given)) < np.geomspace(1, 1 / 20, 10)[case.truth]
    case = case._replace(table=case.table[kept], truth=case.truth[kept], trusted=case.trusted[kept])
    given = case.truth.copy()
    noisy = np.flatnonzero(~case.trusted)
    given[noisy] = datasets.symmetric_noise(case.truth[noisy], 0.2, seed, classes=10)
    return case._replace(name="imbalance 1:20 p=0.2", given=given)


def with_gaps(seed: int) -> Case:
    """A table of numbers and categories with a tenth of the cells missing, and labels that are words."""
    draw = np.random.default_rng(seed)
    case = blobs(4, seed, rows=3000)
    numbers = case.table[:, :8].astype(np.float64) * np.array([1, 10, 100, 1000, 1, 1, 1, 1])
    table = pd.DataFrame(numbers, columns=[f"number {i}" for i in range(8)])
    table["kind"] = np.where(draw.random(3000) < 0.8, case.truth, draw.integers(4, size=3000)).astype(str)
    table = table.mask(draw.random(table.shape) < 0.1)
    words = np.array(["apple", "birch", "cedar", "dune"])
    return case._replace(name="gaps, categories, words", table=table, given=words[case.given], truth=words[case.truth])


def scenarios(seed: int) -> Iterator[Case]:
    """What is neither symmetric nor balanced nor complete."""
    yield digits(np.linspace(0.0, 0.4, 10).round(2).tolist(), seed, "class-dependent")._replace(
        name="class-dependent 0-0.4"
    )
    yield digits(datasets.confused_digits(0.4), seed, "class-dependent")._replace(name="look-alikes confused 0.4")
    yield digits(0.2, seed, "pairwise")
    yield digits(0.4, seed, "pairwise")
    yield annotators(seed)
    yield imbalanced(seed)
    yield blobs(3, seed)
    yield blobs(10, seed)
    yield blobs(100, seed, rows=10_000)
    yield with_gaps(seed)
    yield digits(0.2, seed, trusted=0)._replace(name="no trusted rows p=0.2")
    yield digits(0.0, seed)._replace(name="no noise")
    yield blobs(10, seed, rate=0.0)._replace(name="no noise, 10 classes")


def million(seed: int) -> Case:
    """A million rows, 50 columns, 10 classes."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(10, 3, 50)).astype(np.float32)
    truth = draw.integers(10, size=1_000_000)
    features = centers[truth, draw.integers(3, size=len(truth))] + 2 * draw.standard_normal(
        (len(truth), 50), np.float32
    )
    gold = np.arange(len(truth)) < 2000
    given = truth.copy()
    given[~gold] = datasets.symmetric_noise(truth[~gold], 0.2, seed)
    return Case("a million rows", features, given, truth, gold)


def rows_of(case: Case, seed: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Ours, and cleanlab's two."""
    head = {"case": case.name, "seed": seed}
    yield (
        head | {"method": "proxbi"} | ours(case, options.what in ("mnist", "digits"), seed if options.same_seed else 0)
    )
    for kind in () if options.only else ("lr", "ours") if options.what != "million" else ("as is", "lr"):
        yield head | {"method": f"cleanlab {kind}"} | cleanlab(case, kind)


def cases(seed: int, options: argparse.Namespace) -> Iterator[Case]:
    """Those asked for."""
    if options.what == "mnist":
        yield from (mnist(rate, trusted, seed, options.rows) for trusted in options.trusted for rate in options.p)
    elif options.what == "digits":
        yield from (digits(rate, seed) for rate in options.p)
    else:
        yield from scenarios(seed) if options.what == "scenarios" else (million(seed),)


def main() -> None:
    """Rows as they come, then their means over seeds."""
    others = {"tables": cleaning_tables, "votes": cleaning_votes, "review": cleaning_review}
    if sys.argv[1:2] and sys.argv[1] in others:
        others[sys.argv[1]].main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("mnist", "digits", "scenarios", "million"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--p", type=float, nargs="+", default=[0.1, 0.2, 0.4])
    parser.add_argument("--trusted", type=int, nargs="+", default=[5000, 250])
    parser.add_argument("--rows", type=int, default=20_000, help="noisy rows of MNIST, at most 20,000")
    parser.add_argument("--same-seed", action="store_true", help="the cleaner has the seed of the noise, not 0")
    parser.add_argument("--cases", default="", help="only the scenarios with this in their name")
    parser.add_argument("--only", action="store_true", help="proxbi only, without cleanlab")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for seed in range(options.first, options.first + options.seeds):
        for case in cases(seed, options):
            if options.cases not in case.name:
                continue
            for row in rows_of(case, seed, options):
                found.append(row)
                print(
                    {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()},
                    flush=True,
                )
    groups = pd.DataFrame(found).drop(columns="seed").groupby(["case", "method"], sort=False)
    print(groups.mean(numeric_only=True).round(4).to_string())
    if "F1" in found[0]:
        print(
            "F1 farthest from its mean:", groups["F1"].agg(lambda each: (each - each.mean()).abs().max()).max().round(4)
        )
    print(f"largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")


if __name__ == "__main__":
    main()
