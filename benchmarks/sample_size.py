"""How many rows the label cleaner has to learn from: F1 of its flags, on all rows, against the size of the sample.

python benchmarks/sample_size.py letter --data FOLDER --sizes 2500 5000 10000 20000
python benchmarks/sample_size.py mnist --sizes 7500 15000 30000 60000
python benchmarks/sample_size.py letter --data FOLDER --sizes 2500 10000 --fit-all

A fifth of the labels is replaced by others at random; a thousand rows are trusted. FOLDER has letter.npz (X, y), or the
files of MNIST, which are else where `proxbi.datasets` finds them. A line of JSON for each size.
"""

import argparse
import json
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

from proxbi import datasets
from proxbi.cleaning import clean
from proxbi.cleaning.method import learners

WRONG, TRUSTED = 0.2, 1000


def table(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Features, and classes that are right."""
    if name == "mnist":
        train = datasets.mnist(folder).train
        return np.asarray(train.features, np.float32) / 255, np.asarray(train.labels)
    assert folder is not None, "letter needs --data"
    with np.load(folder / "letter.npz", allow_pickle=False) as file:
        features, classes = file["X"].astype(np.float32), np.unique(file["y"], return_inverse=True)[1]
    return (features - features.mean(axis=0)) / features.std(axis=0), classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("letter", "mnist"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--fit-all", action="store_true", help="the regression fitted to all rows")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    features, truth = table(given.table, given.data)
    draw, classes = np.random.default_rng(given.seed), int(truth.max()) + 1
    wrong = draw.random(len(truth)) < WRONG
    trusted = np.zeros(len(truth), bool)
    trusted[draw.permutation(np.flatnonzero(~wrong))[:TRUSTED]] = True
    labels = np.where(wrong, (truth + draw.integers(1, classes, len(truth))) % classes, truth)
    for size in given.sizes:
        start = time.perf_counter()
        # Without the forest, which tables of more than 30,000 rows do not have, so that only the sample differs.
        with patch.object(learners, "TOO_MANY", 0):
            found = clean(
                features,
                labels,
                classes,
                trusted=trusted,
                learn_from=size,
                fit_all=given.fit_all,
                seed=given.seed,
            ).issue
        precision, recall = (float(np.mean(a[b])) for a, b in ((wrong, found), (found, wrong & ~trusted)))
        told = {
            "table": given.table,
            "rows": len(truth),
            "learned from": size,
            "all rows fitted": given.fit_all,
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "F1": round(2 * precision * recall / (precision + recall), 4),
            "seconds": round(time.perf_counter() - start),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
