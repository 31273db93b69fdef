"""The final fit, to the rows that were kept and the trusted ones."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.estimator.models import KernelModel, linear_model
from proxbi.cleaning.inputs.prepare import Inputs
from proxbi.cleaning.result import Cleaned


def kept_rows(inputs: Inputs, cleaned: Cleaned) -> Int[np.ndarray, " kept"]:
    """Those that are not flagged (trusted ones never are); all, if that leaves no two classes to tell apart."""
    counted = inputs.labelled if inputs.weight is None else inputs.labelled & (inputs.weight > 0)
    kept = np.flatnonzero(counted & ~cleaned.issue)
    return kept if len(np.unique(inputs.labels[kept])) > 1 else np.flatnonzero(counted)


def kernel_fit(inputs: Inputs, cleaned: Cleaned, seed: int) -> KernelModel:
    """Kernel ridge regression on the encoded features, with the bandwidth, ridge and temperature that were found."""
    kept = kept_rows(inputs, cleaned)
    model = KernelModel.tuned(cleaned.settings, seed, inputs.learn_from)
    return model.fit(inputs.features[kept], inputs.labels[kept], len(inputs.classes), taken(inputs.weight, kept))


def linear_fit(inputs: Inputs, cleaned: Cleaned, seed: int) -> Any:
    """Logistic regression on the encoded features."""
    kept = kept_rows(inputs, cleaned)
    weight, trusted = taken(inputs.weight, kept), cleaned.trusted[kept]
    return linear_model(inputs.features[kept], inputs.labels[kept], sample_weight=weight, trusted=trusted, seed=seed)


class Numbered:
    """A classifier that takes 0, 1, ... as labels and nothing else, as XGBoost's does, fitted to labels of any kind."""

    def __init__(self, estimator: Any, classes: np.ndarray) -> None:
        self.estimator = estimator
        self.classes_ = classes

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[np.asarray(self.estimator.predict(X), int)]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        return self.estimator.predict_proba(X)


def fitted(estimator: Any, X: Any, y: np.ndarray, **options: Any) -> Any:
    """The estimator, fitted to the labels; if it refuses them, to their numbers."""
    classes, numbers = np.unique(y, return_inverse=True)
    try:
        return estimator.fit(X, y, **options)
    except ValueError:
        if np.array_equal(classes, np.arange(len(classes))):
            raise
        return Numbered(estimator.fit(X, numbers, **options), classes)


def taken(values: Any, rows: Int[np.ndarray, " kept"]) -> Any:
    """Some rows of a data frame or an array, or None of None."""
    if values is None:
        return None
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def spread(
    found: Float[np.ndarray, "rows seen"], columns: Int[np.ndarray, " seen"], classes: int
) -> Float[np.ndarray, "rows classes"]:
    """Probabilities of all classes, 0 for those of which no row was kept.

    >>> spread(np.array([[0.25, 0.75]]), np.array([0, 2]), 3)
    array([[0.25, 0.  , 0.75]])
    """
    if found.shape[1] == classes:
        return found
    out = np.zeros((len(found), classes), found.dtype)
    out[:, columns] = found
    return out
