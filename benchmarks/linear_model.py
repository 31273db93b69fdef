"""`proxbi.linear_model` beside scikit-learn's own: one penalty against grids of 100, and many penalties against one.

python benchmarks/linear_model.py one  [--only diabetes] [--json one.json]
python benchmarks/linear_model.py many [--only bloodbrain] [--json many.json]

`one`: the least cross-validated loss (same five folds, columns standardised first) and the seconds of `LassoCV`,
`ElasticNetCV` and `LogisticRegressionCV` on their grids of 100, and of ours with `per="all"`; `RidgeCV`, which has a
closed form, is shown apart. Ours is run twice: the first run compiles (`cold` is what that adds), the second is timed.

`many`: five outer folds (shuffled, seed 0) of the tables and of three designs with irrelevant, grouped and unequal
features. Test losses of `per="auto"`, of `per="feature"` without h, and of one penalty; `gain` is that of "auto" over
one penalty in percent, `z` the gain in standard errors over rows, and `gap` the test loss over the cross-validated one.

Rows that are in the JSON file already are not run again. Tables that do not come with scikit-learn are looked for as in
benchmarks/families.py.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import ElasticNetCV, LassoCV, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold

from families import folder
from proxbi.linear_model import TunedLinearRegression, TunedLogisticRegression

GRID = 100
FOLDS = 5
REGRESSION = ("diabetes", "tecator", "bloodbrain", "wide")
CLASSES = ("mdrr", "spam", "breast_cancer", "digits")
DESIGNS = ("irrelevant", "grouped", "unequal")
MANY = ("diabetes", "tecator", "bloodbrain", "mdrr", "spam", "breast_cancer", "digits", "wine", "iris", *DESIGNS)
Table = tuple[Any, np.ndarray]


def table(name: str) -> Table | None:
    """X with standardised columns and y; None if the table is not there."""
    if name == "wide":
        return wide()
    if name in DESIGNS:
        return design(name)[:2]
    own: dict[str, Callable[..., Any]] = {
        "diabetes": load_diabetes,
        "breast_cancer": load_breast_cancer,
        "digits": load_digits,
        "wine": load_wine,
        "iris": load_iris,
    }
    if name in own:
        X, y = own[name](return_X_y=True)
    else:
        path = folder() / f"{name}.npz"
        if not path.exists():
            return None
        with np.load(path) as file:
            X, y = file["X"].astype(float), file["y"]
    spread = X.std(axis=0)
    varies = spread > 1e-12 * np.maximum(np.abs(X).max(axis=0), 1e-300)
    X = (X[:, varies] - X[:, varies].mean(axis=0)) / spread[varies]
    return X, y.astype(float) if name in REGRESSION else y


def wide() -> Table:
    """500 x 20,000, 2 % of the entries are not zero, 20 columns matter."""
    draw = np.random.default_rng(0)
    X = sparse.random(500, 20_000, 0.02, format="csc", random_state=0)
    w = np.zeros(20_000)
    w[draw.permutation(20_000)[:20]] = 3 * draw.normal(size=20)
    return X, X @ w + 0.3 * draw.normal(size=500)


def design(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """200 x 60 in ten groups of six. Irrelevant: six columns matter. Grouped: two groups do. Unequal: the sizes of the
    coefficients fall by a factor of 300.
    """
    draw = np.random.default_rng(DESIGNS.index(name))
    X, groups = draw.normal(size=(200, 60)), np.arange(60) // 6
    w = draw.normal(size=60)
    if name == "irrelevant":
        w[draw.permutation(60)[6:]] = 0
    elif name == "grouped":
        w[groups > 1] = 0
    else:
        w *= np.geomspace(3, 0.01, 60)
    return X, X @ w + 2 * draw.normal(size=200), groups if name == "grouped" else None


# One penalty.


def peers(name: str) -> dict[str, tuple[Any, Any, Callable[[Any], float]]]:
    """By penalty: scikit-learn's estimator, ours, and how to read the least loss of the former."""
    if name in REGRESSION:
        return {
            "lasso": (LassoCV(alphas=GRID, cv=FOLDS), TunedLinearRegression("lasso", per="all"), _least_mse),
            "elastic_net": (
                ElasticNetCV(alphas=GRID, cv=FOLDS),
                TunedLinearRegression("elastic_net", per="all"),
                _least_mse,
            ),
            "ridge (apart)": (
                RidgeCV(np.geomspace(1e-4, 1e6, GRID), cv=FOLDS, scoring="neg_mean_squared_error"),
                TunedLinearRegression("ridge", per="all"),
                lambda peer: -peer.best_score_,
            ),
        }
    logistic = LogisticRegressionCV(Cs=GRID, cv=FOLDS, scoring=exact_log_loss)
    return {"ridge": (logistic, TunedLogisticRegression("ridge", per="all"), _least_log_loss)}


def exact_log_loss(estimator: Any, X: Any, y: np.ndarray) -> float:
    """Minus the mean log loss, from scores. scikit-learn's own cuts the loss of a row off at 36, which rows of `spam`
    exceed: then a fit that is sure of what is wrong looks better than it is.
    """
    scores = estimator.decision_function(X)
    place = np.searchsorted(estimator.classes_, y)
    if scores.ndim == 1:
        return -float(np.mean(np.logaddexp(0.0, np.where(place == 1, -scores, scores))))
    return -float(np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(y)), place]))


def _least_mse(peer: Any) -> float:
    return float(peer.mse_path_.reshape(-1, FOLDS).mean(axis=1).min())


def _least_log_loss(peer: Any) -> float:
    scores = peer.scores_
    scores = next(iter(scores.values())) if isinstance(scores, dict) else scores
    return float(-scores.reshape(FOLDS, -1).mean(axis=0).max())


def timed(estimator: Any, X: Any, y: np.ndarray) -> float:
    begin = time.perf_counter()
    estimator.fit(X, y)
    return time.perf_counter() - begin


def measure_one(name: str, known: dict[str, Any]) -> list[dict[str, Any]]:
    data = table(name)
    if data is None:
        return []
    rows = []
    for penalty, (peer, ours, least) in peers(name).items():
        key = f"one {name} {penalty}"
        if key not in known:
            seconds = timed(peer, *data)
            first, second = timed(ours, *data), timed(ours, *data)
            row = {"loss": ours.cv_loss_, "peer_loss": least(peer), "seconds": second, "peer_seconds": seconds}
            known[key] = row | {"cold": first - second}
        rows.append({"table": name, "penalty": penalty} | known[key])
    return rows


# Many penalties.


def test_losses(estimator: Any, X: Any, y: np.ndarray) -> np.ndarray:
    if not hasattr(estimator, "classes_"):
        return (estimator.predict(X) - y) ** 2
    return np.array([-exact_log_loss(estimator, X[[row]], y[[row]]) for row in range(len(y))])


def measure_many(name: str, penalty: str, known: dict[str, Any]) -> list[dict[str, Any]]:
    data = table(name)
    if data is None:
        return []
    X, y = data
    regression = name in REGRESSION or name in DESIGNS
    groups = design(name)[2] if name in DESIGNS else None
    make = TunedLinearRegression if regression else TunedLogisticRegression
    splitter = KFold if regression else StratifiedKFold
    ways = {"all": {"per": "all"}, "auto": {"per": "auto"}, "free": {"per": "feature", "upper_regularizer": None}}
    for fold, (train, test) in enumerate(splitter(FOLDS, shuffle=True, random_state=0).split(X, y)):
        for way, options in ways.items():
            key = f"many {name} {penalty} {fold} {way}"
            if key in known:
                continue
            estimator = make(penalty, groups=groups, **options)
            seconds = timed(estimator, X[train], y[train])
            losses = test_losses(estimator, X[test], y[test])
            chosen = {name: estimator.chosen_[name] for name in ("per", "precision")}
            known[key] = {"losses": losses.tolist(), "cv": estimator.cv_loss_, "seconds": seconds} | chosen
    found = {way: [known[f"many {name} {penalty} {fold} {way}"] for fold in range(FOLDS)] for way in ways}
    return [_compared(name, penalty, found)]


def _compared(name: str, penalty: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    losses = {way: np.concatenate([one["losses"] for one in runs]) for way, runs in found.items()}
    difference = losses["all"] - losses["auto"]
    error = difference.std() / np.sqrt(len(difference))
    one = losses["all"].mean()
    row = {"table": name, "penalty": penalty}
    row |= {f"{way}": values.mean() for way, values in losses.items()}
    row |= {"gain %": 100 * difference.mean() / one, "z": difference.mean() / error if error > 0 else 0.0}
    row |= {f"gap {way}": losses[way].mean() / np.mean([one["cv"] for one in runs]) for way, runs in found.items()}
    picks = [f"{one['per']}" for one in found["auto"]]
    return row | {"picked": "/".join(picks), "seconds": sum(run["seconds"] for run in found["auto"])}


def markdown(rows: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row.values())) + " |" for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["one", "many"])
    parser.add_argument("--only", nargs="*", help="these tables alone")
    parser.add_argument("--penalty", nargs="*", default=["ridge"], help="of the part `many`")
    parser.add_argument("--json", type=Path, help="keep the rows there, and do not run those again that it has")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of the peers, most of which do not converge on some table
    known = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    rows: list[dict[str, Any]] = []
    for name in arguments.only or ((*REGRESSION, *CLASSES) if arguments.part == "one" else MANY):
        if arguments.part == "one":
            rows += measure_one(name, known)
        else:
            for penalty in arguments.penalty:
                rows += measure_many(name, penalty, known)
        if arguments.json:
            arguments.json.write_text(json.dumps(known))
        print(rows[-1] if rows else f"{name} is not there (set PROXBI_TABLES).", flush=True)
    if rows:
        print("\n" + markdown(rows))
    if rows and arguments.part == "one":
        grids = [row for row in rows if "apart" not in row["penalty"]]
        mean = np.mean([row["loss"] / row["peer_loss"] for row in grids])
        seconds = [sum(row[name] for row in grids) for name in ("seconds", "peer_seconds")]
        print(f"\nmean of loss / peer loss {mean:.4f}; seconds {seconds[0]:.1f}, of the peers {seconds[1]:.1f}")


if __name__ == "__main__":
    main()
