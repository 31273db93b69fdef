"""A scorer for cross-validation of data with wrong labels: only trusted rows count."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer


class TrustedScorer(BaseEstimator):
    """Score a classifier on the trusted rows of the test fold: on all of them it would be rewarded for wrong labels.

    - `scoring`: what to compute there, as in scikit-learn: "accuracy", "neg_log_loss", ..., or a scorer.

    It needs to know which rows are trusted, hence metadata routing:

    >>> import sklearn
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import cross_validate
    >>> X, y = load_iris(return_X_y=True)
    >>> trusted = np.arange(len(y)) % 5 == 0
    >>> spoiled = np.where(trusted | (np.arange(len(y)) % 4 > 0), y, (y + 1) % 3)
    >>> model = LogisticRegression(max_iter=1000)
    >>> with sklearn.config_context(enable_metadata_routing=True):
    ...     on_trusted = cross_validate(model, X, spoiled, scoring=TrustedScorer(), params={"trusted": trusted})
    >>> bool(on_trusted["test_score"].mean() > 0.85)
    True
    """

    __metadata_request__score = {"trusted": True}  # noqa: RUF012 (scikit-learn reads a plain dict)

    def __init__(self, scoring: str | Callable[..., float] = "accuracy") -> None:
        self.scoring = scoring

    def __call__(self, estimator: Any, X: Any, y: Any, *, trusted: Any) -> float:
        return self.score(estimator, X, y, trusted=trusted)

    def score(self, estimator: Any, X: Any, y: Any, *, trusted: Any) -> float:
        """The score on the rows of X that `trusted` marks."""
        rows = np.flatnonzero(np.asarray(trusted, bool))
        if rows.size == 0:
            raise ValueError(
                "trusted marks no row of this fold, so nothing can be scored: use fewer folds, or shuffle."
            )
        scorer = get_scorer(self.scoring) if isinstance(self.scoring, str) else self.scoring
        chosen = X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]
        return float(scorer(estimator, chosen, np.asarray(y)[rows]))
