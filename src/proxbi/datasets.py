"""Data for examples and experiments, and label noise to spoil it with."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Labelled(NamedTuple):
    """Rows of features and their class labels 0, 1, ..."""

    features: Float[np.ndarray, "rows features"]
    labels: Int[np.ndarray, " rows"]

    def take(self, rows: Int[np.ndarray, " taken"] | slice) -> "Labelled":
        """These rows."""
        return Labelled(self.features[rows], self.labels[rows])


def digits() -> Labelled:
    """The 1,797 handwritten digits that scikit-learn ships: 64 pixels in [0, 1] and a constant 1; nothing is
    downloaded.

    >>> digits().features.shape
    (1797, 65)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("datasets.digits needs scikit-learn: pip install 'proxbi[clean]'.") from error
    images = load_digits()
    pixels = images.data.astype(np.float32) / 16
    return Labelled(np.hstack([pixels, np.ones((len(pixels), 1), np.float32)]), images.target.astype(np.int32))


def symmetric_noise(labels: Int[np.ndarray, " rows"], rate: float, seed: int) -> Int[np.ndarray, " rows"]:
    """`labels` with int(rate * rows) of them, chosen at random, replaced by another class, also at random.

    >>> int(np.sum(symmetric_noise(np.arange(10) % 5, 0.3, seed=0) != np.arange(10) % 5))
    3
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in [0, 1), got {rate}.")
    draw = np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    spoiled = draw.choice(len(labels), int(rate * len(labels)), replace=False)
    noisy = labels.copy()
    noisy[spoiled] = (labels[spoiled] + draw.integers(1, classes, len(spoiled))) % classes
    return noisy
