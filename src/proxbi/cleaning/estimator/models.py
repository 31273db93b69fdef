"""The models that are fitted to the rows that were kept."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.method.drawing import FIT
from proxbi.cleaning.method.kernel import JITTER, typical_distance
from proxbi.cleaning.method.randomness import stream

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

LANDMARKS, BLOCK = 1500, 2048
"""The most landmarks, and the rows that are in memory as features at a time."""
STRENGTHS = np.geomspace(1e-4, 10, 21)
"""The values of C that `linear_model` tries, from the smallest on."""
POWERS = (0.0, 0.5)
"""The powers of their standard deviations that it divides columns by."""
SEARCH = 10_000
"""The most rows that are fitted while it tries."""


class KernelModel:
    """Kernel ridge regression of one-hot labels on landmarks, and a softmax of its scores.

    It is the model that judged the labels, in double precision. With k the Gaussian kernel, K its values between rows
    and landmarks and M those between landmarks, the coefficients solve (K'WK + ridge M) a = K'W E.

    **Arguments:**

    - `bandwidth`, `ridge`, `temperature`: as the cleaner found them, in `Cleaned.settings`; without a bandwidth, a
      third of the median squared distance of two rows.
    - `seed`: draws landmarks, and rows where there are more than `learn_from`, the most that are fitted.

    >>> rows = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> model = KernelModel().fit(rows, np.array([0, 0, 1, 1]), classes=2)
    >>> model.predict_proba(np.array([[0.05], [1.05]])).argmax(axis=1).tolist()
    [0, 1]
    """

    def __init__(
        self,
        *,
        bandwidth: float | None = None,
        ridge: float = 0.1,
        temperature: float = 0.1,
        seed: int = 0,
        learn_from: int = FIT,
    ):
        """Nothing is computed yet."""
        self.bandwidth, self.ridge, self.temperature = bandwidth, ridge, temperature
        self.seed, self.learn_from = seed, learn_from

    @classmethod
    def tuned(cls, settings: Mapping[str, float | str], seed: int = 0, learn_from: int = FIT) -> "KernelModel":
        """With the numbers in `Cleaned.settings`, as far as they are there."""
        known = {name: float(settings[name]) for name in ("bandwidth", "ridge", "temperature") if name in settings}
        return cls(**known, seed=seed, learn_from=learn_from)

    def fit(
        self,
        features: Float[np.ndarray, "rows columns"],
        labels: Int[np.ndarray, " rows"],
        classes: int,
        sample_weight: Float[np.ndarray, " rows"] | None = None,
    ) -> "KernelModel":
        """Rows with weight 0 might as well not be there; one with weight 2 might be there twice."""
        weight = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        draw = stream(self.seed)
        rows = np.flatnonzero(weight > 0)
        most = self.learn_from
        rows = np.sort(draw.permutation(rows)[:most]) if len(rows) > most else rows
        self._choose_landmarks(features[rows], draw)
        size = len(self._landmarks)
        gram, moment = self.ridge * (self._kernel(self._landmarks) + JITTER * np.eye(size)), np.zeros((size, classes))
        for start in range(0, len(rows), BLOCK):
            some = rows[start : start + BLOCK]
            roots = np.sqrt(weight[some, None])
            kernel = roots * self._kernel(features[some])
            gram += kernel.T @ kernel  # of a matrix with itself: half the work
            moment += kernel.T @ (roots * np.eye(classes)[labels[some]])
        self._coefficients = scipy.linalg.solve(gram, moment, assume_a="pos")
        return self

    def predict_proba(self, features: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows classes"]:
        """The probability of each class."""
        blocks = range(0, len(features), BLOCK)
        scores = [self._kernel(features[start : start + BLOCK]) @ self._coefficients for start in blocks]
        logits = np.concatenate([np.zeros((0, self._coefficients.shape[1])), *scores]) / self.temperature
        odds = np.exp(logits - logits.max(axis=1, initial=-np.inf, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def _choose_landmarks(self, rows: Float[np.ndarray, "rows columns"], draw: np.random.Generator) -> None:
        rows = rows.astype(np.float64)
        # Where all rows can be landmarks each is one once, so that a row given twice is the same as one of weight 2.
        chosen = rows[draw.choice(len(rows), LANDMARKS, replace=False)] if len(rows) > LANDMARKS else rows
        chosen = np.unique(chosen, axis=0)
        self._center = chosen.mean(axis=0)
        self._landmarks = chosen
        self._width = typical_distance(chosen) / 3 if self.bandwidth is None else self.bandwidth

    def _kernel(self, rows: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows landmarks"]:
        left, right = rows - self._center, self._landmarks - self._center
        squares = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1) - 2 * left @ right.T
        return np.exp(-np.maximum(squares, 0) / (2 * self._width))


def linear_model(
    features: Float[np.ndarray, "rows columns"],
    labels: Int[np.ndarray, " rows"],
    *,
    sample_weight: Float[np.ndarray, " rows"] | None = None,
    trusted: Bool[np.ndarray, " rows"] | None = None,
    seed: int = 0,
) -> "LogisticRegression":
    """Multinomial logistic regression. Its C, and how far columns are brought to one scale first, are those with the
    least loss on rows held out: each half of the trusted ones in turn, or a fifth of all where there are none.

    >>> rows, labels = np.linspace(-1, 1, 40)[:, None], np.repeat([0, 1], 20)
    >>> float(linear_model(rows, labels).score(rows, labels))
    1.0
    """
    weight = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    draw = stream(seed)
    spread = features[weight > 0].std(axis=0)
    spread = np.maximum(spread, 0.05 * np.sqrt(np.mean(spread**2)) + 1e-12)  # of columns that hardly vary
    scales = [(spread**-power).astype(features.dtype) for power in POWERS]
    folds = _folds(labels, weight, trusted, draw)
    found = [_best_strength(features * scale, labels, weight, folds) for scale in scales] if folds else [(0.0, 1.0)]
    best = min(range(len(found)), key=lambda index: found[index])
    scale, (_, strength) = scales[best], found[best]
    model = _logistic(C=strength).fit(features * scale, labels, weight)
    model.coef_ *= scale
    return model


def _logistic(**parameters: Any) -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000, **parameters)


def _folds(
    labels: Int[np.ndarray, " rows"],
    weight: Float[np.ndarray, " rows"],
    trusted: Bool[np.ndarray, " rows"] | None,
    draw: np.random.Generator,
) -> list[tuple[Int[np.ndarray, " fitted"], Int[np.ndarray, " judges"]]]:
    """Rows to fit and rows to judge by; none where a class would be missing from those that are fitted."""
    counted = np.flatnonzero(weight > 0)
    pairs = [
        (draw.permutation(np.setdiff1d(counted, judges))[:SEARCH], judges) for judges in _judges(labels, trusted, draw)
    ]
    classes = len(np.unique(labels))
    return [(fit, judges) for fit, judges in pairs if len(judges) and len(np.unique(labels[fit])) == classes]


def _judges(
    labels: Int[np.ndarray, " rows"], trusted: Bool[np.ndarray, " rows"] | None, draw: np.random.Generator
) -> list[Int[np.ndarray, " judges"]]:
    if trusted is not None and np.sum(trusted) >= 20:
        gold = draw.permutation(np.flatnonzero(trusted))
        return [gold[: len(gold) // 2], gold[len(gold) // 2 :]]
    return [draw.permutation(len(labels))[: len(labels) // 5]]


def _best_strength(
    features: np.ndarray, labels: np.ndarray, weight: np.ndarray, folds: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[float, float]:
    """The least loss, and the C that has it; from weak to strong, each fit started at the last, until the loss has
    gone up twice.
    """
    models = [_logistic(warm_start=True) for _ in folds]
    losses: list[float] = []
    for strength in STRENGTHS:
        fold_losses = []
        for model, (rest, judges) in zip(models, folds, strict=True):
            model.set_params(C=strength).fit(features[rest], labels[rest], weight[rest])
            logs = model.predict_log_proba(features[judges])
            own = np.searchsorted(model.classes_, labels[judges])
            fold_losses.append(-np.mean(logs[np.arange(len(judges)), own]))
        losses.append(float(np.mean(fold_losses)))
        if len(losses) - 1 - int(np.argmin(losses)) >= 2:
            break
    return min(losses), float(STRENGTHS[int(np.argmin(losses))])
