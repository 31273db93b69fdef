"""The label cleaner as a scikit-learn classifier."""

import time
import warnings
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, clone
    from sklearn.utils import check_random_state, get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
        validate_data,
    )
except ImportError as error:
    raise ImportError("LabelCleaner needs scikit-learn 1.6 or newer: pip install 'proxbi[clean]'.") from error

from proxbi.cleaning.estimator.refit import fitted, kept_rows, kernel_fit, linear_fit, spread, taken
from proxbi.cleaning.inputs.ballots import has_votes, read_ballots
from proxbi.cleaning.inputs.prepare import Inputs, Words, prepare, require_labels
from proxbi.cleaning.large.frame import clean_frame, columns_alone, is_dask
from proxbi.cleaning.method.clean import check_fit_all
from proxbi.cleaning.method.drawing import FIT, checked_number
from proxbi.cleaning.result import Cleaned, Consensus
from proxbi.cleaning.run import clean_inputs

if TYPE_CHECKING:
    import pandas as pd

OF_VOTES = (
    *("consensus_label_", "consensus_quality_", "vote_quality_"),
    *("annotator_noise_", "next_vote_gain_", "next_vote_order_"),
)
"""Attributes that exist only if rows have several votes."""


NEXT_STEPS = (
    (
        "Fit again with your decisions. For rows reviewed because of their labels, also pass the labels they had:",
        'rows, labels = cleaner.decisions("decisions.csv"); y_new = np.array(y); y_new[rows] = labels\n'
        "cleaner.fit(X, y_new, trusted=rows, given=y)",
    ),
    ("Or, without a review, train on the other rows:", "model.fit(X[~cleaner.is_issue_], y[~cleaner.is_issue_])"),
)
"""What the report says should be done next."""


class CleaningWarning(UserWarning):
    """Something about the data that a user of the cleaner should know."""


class LabelCleaner(ClassifierMixin, BaseEstimator):
    """Find wrong labels with the help of rows whose labels are trusted, and fit a classifier to the rest.

    A bilevel problem sets how much each row counts: lower level, a weighted ridge regression on kernel features; upper
    level, its loss on trusted rows that it has not seen, in the noise rates, the bandwidth, the ridge and the
    temperature (see `proxbi.cleaning.method.clean`).

    - `estimator`: the classifier fitted at the end to the rows kept and the trusted ones: any of scikit-learn, which
      gets X unchanged (for images the pixels); None: kernel ridge regression on the encoded features; "linear":
      logistic regression on them.
    - `weights`: "auto", few parameters for all rows together, or "free", the paper's one parameter for each row
      (which overfits; `history_` shows how much).
    - `learn_from`: the maximal number of rows that are fitted, at most half of them trusted; all rows are judged. More
      rows find more wrong labels, and take time and memory in proportion.
    - `fit_all`: if there are more rows than that, fit the regression that judges to all of them: it finds more wrong
      labels, takes no more memory, and some minutes for each million rows.
    - `random_state`: an integer makes the result reproducible.

    If you use several processes, start them with "spawn" or joblib's default: JAX does not work in a process forked
    after JAX has started, and `fit` raises a RuntimeError there.

    After `fit`, one value for each row of X: `sample_weight_` in [0, 1]; `label_quality_`, the probability that the
    label is right; `is_issue_`; `suggested_label_`; `trusted_`. And `noise_rate_` (estimate, low, high: the 95 %
    interval of the share of wrong labels among rows not trusted), `review_order_` (rows of X that are not trusted, with
    those first whose labels would teach most if you decided them: fit again with `given`), `classes_`, `group_names_`,
    `history_` of the outer solver, `estimator_`, the final classifier, and `result_`, all findings, with X_val's rows
    after X's.

    If `y` has several votes for each row, the attributes about labels refer to those that the votes alone make most
    likely, and there are also: `consensus_label_`, the most likely class by votes and features, and
    `consensus_quality_`, its probability; `vote_quality_`, rows by annotators, the probability that a vote is right
    (NaN where there is none); `annotator_noise_`, by the name of the annotator, `votes` (how many), `rate` of wrong
    votes (estimate, low, high: the 95 % interval) and `confusion` (`classes_` by votes); `next_vote_order_`, the rows
    in the order in which another vote would help most, and `next_vote_gain_`, by how much it would raise the
    probability that the consensus is right.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> y = y.map({0: "setosa", 1: "versicolor", 2: "virginica"})
    >>> spoiled = y.copy()
    >>> spoiled[[3, 60, 120]] = ["virginica", "setosa", "setosa"]
    >>> cleaner = LabelCleaner().fit(X, spoiled, trusted=np.arange(len(X)) % 5 == 4)
    >>> cleaner.suggested_label_[[3, 60, 120]].tolist()
    ['setosa', 'versicolor', 'virginica']
    >>> bool(cleaner.score(X, y) > 0.9)
    True
    """

    # No other estimator has these: metadata routing requests them without further settings.
    __metadata_request__fit = dict.fromkeys(("X_val", "y_val", "trusted", "given", "groups", "pred_probs"), True)

    def __init__(
        self,
        estimator: Any = None,
        *,
        weights: Literal["auto", "free"] = "auto",
        learn_from: int = FIT,
        fit_all: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.weights = weights
        self.learn_from = learn_from
        self.fit_all = fit_all
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        trusted: Any = None,
        given: Any = None,
        groups: Any = None,
        pred_probs: Any = None,
    ) -> "LabelCleaner":
        """Clean the labels `y` of `X`, then fit the final classifier.

        - `y`: a label for each row; or votes in two or more columns, rows by annotators, NaN or None for no vote.
          A column may also mix the votes of several people: columns that do not differ are treated as one.
        - `X`: a data frame (numbers, categories, dates, missing values) or an array of numbers, also of images. A
          Dask data frame is processed one partition at a time; the final classifier is then fitted to a sample of at
          most one and a half times `learn_from` rows.
        - `sample_weight`: how much each row counts, whatever its label.
        - `trusted`: which labels are known to be right: a mask, or row indices. In cross-validation use a mask:
          scikit-learn slices only arrays that are as long as X. With several votes for a row, the class with the most
          votes is trusted.
        - `given`: if trusted rows were chosen because of their labels (as suspects are), the original labels of all
          rows; the decided labels are in `y`. Such rows are not representative, and this corrects for it. With several
          votes for a row it has the shape of `y`, and all columns of a decided row hold the class decided on.
        - `X_val, y_val`: further trusted rows, not in X.
        - `groups`: the annotator or source of each row; each gets a noise rate of its own.
        - `pred_probs`: out-of-fold probabilities of your own model, for the rows of X and the classes in sorted order;
          they are calibrated and blended with the cleaner's own.
        """
        self._check_parameters(weighted=sample_weight is not None)
        if is_dask(X):
            in_memory = {"sample_weight": sample_weight, "given": given, "pred_probs": pred_probs}
            return self._fit_frame(X, y, in_memory, X_val=X_val, y_val=y_val, trusted=trusted, groups=groups)
        X, y = self._checked(X, y, reset=True)
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val must be given together.")
        if X_val is not None:
            X_val, y_val = self._checked(X_val, y_val, reset=False)
        self._seed = _seed(self.random_state)
        inputs = prepare(
            X,
            y,
            X_val=X_val,
            y_val=y_val,
            trusted=trusted,
            given=given,
            groups=groups,
            sample_weight=sample_weight,
            pred_probs=pred_probs,
            learn_from=self.learn_from,
            seed=self._seed,
        )
        cleaned = clean_inputs(inputs, weights=self.weights, seed=self._seed, fit_all=self.fit_all)
        inputs = inputs if cleaned.consensus is None else inputs.with_consensus(cleaned.consensus.label)
        self._store(inputs, cleaned)
        self._index = getattr(X, "index", None)
        self.estimator_ = self._final_fit(inputs, cleaned, X, X_val)
        for sentence in self.result_.warnings:
            warnings.warn(sentence, CleaningWarning, stacklevel=2)
        return self

    def _fit_frame(self, X: Any, y: Any, in_memory: dict[str, Any], **rest: Any) -> "LabelCleaner":
        """`fit` of a Dask data frame."""
        for name, given in in_memory.items():
            if given is not None:
                raise ValueError(f"{name} must not be given with a Dask data frame: take X.compute() where it fits.")
        if y is None or has_votes(y):
            raise ValueError("y must be one label for each row of a Dask data frame; votes need X.compute().")
        if X.ndim != 2:
            raise ValueError("X must be a Dask data frame, got a series: take X.to_frame().")
        if (rest["X_val"] is None) != (rest["y_val"] is None):
            raise ValueError("X_val and y_val must be given together.")
        validate_data(self, columns_alone(X), reset=True, skip_check_array=True)
        if rest["X_val"] is not None:
            apart = [each.compute() if hasattr(each, "compute") else each for each in (rest["X_val"], rest["y_val"])]
            rest["X_val"], rest["y_val"] = self._checked(*apart, reset=False)
        self._seed = _seed(self.random_state)
        options: dict[str, Any] = {"weights": self.weights, "learn_from": self.learn_from, "fit_all": self.fit_all}
        found = clean_frame(X, y, **options, seed=self._seed, **rest)
        self._store(found.inputs, found.cleaned)
        self._index = found.index
        self.estimator_ = self._final_fit(found.sample_inputs, found.sample_cleaned, found.sample, found.sample_apart)
        for sentence in self.result_.warnings:
            warnings.warn(sentence, CleaningWarning, stacklevel=3)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row, by the final classifier."""
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        if self._is_own():
            return self.classes_[np.argmax(self._own_probabilities(X), axis=1)]
        return self.estimator_.predict(_flat(X))

    @available_if(lambda self: self._is_own() or hasattr(self.estimator, "predict_proba"))
    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of each of `classes_`, by the final classifier."""
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        if self._is_own():
            return self._own_probabilities(X)
        columns = np.searchsorted(self.classes_, self.estimator_.classes_)
        return spread(self.estimator_.predict_proba(_flat(X)), columns, len(self.classes_))

    def to_frame(self) -> "pd.DataFrame":
        """One row for each row of X, with the index of X."""
        import pandas as pd

        check_is_fitted(self)
        columns = {
            "given_label": self.classes_[self._inputs.labels[: self._inputs.rows]],
            "suggested_label": self.suggested_label_,
            "weight": self.sample_weight_,
            "quality": self.label_quality_,
            "issue": self.is_issue_,
            "trusted": self.trusted_,
        }
        if self.result_.consensus is not None:
            columns |= {
                "consensus_label": self.consensus_label_,
                "consensus_quality": self.consensus_quality_,
                "next_vote_gain": self.next_vote_gain_,
            }
        return pd.DataFrame(columns, index=self._index)

    def decisions(self, path: str | PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
        """The rows of X that were decided on the page that `report` wrote, and the label of each. Decisions about other
        data are refused.
        """
        from proxbi.cleaning.files.decisions import Subject, read_decisions

        check_is_fitted(self)
        inputs, ids = self._inputs, None if self._index is None else self._index.tolist()
        given = inputs.classes[inputs.as_given[: inputs.rows]]
        return read_decisions(Path(path), Subject("the data", self._digest, given, ids))

    def report(
        self, path: str | PathLike[str], X: Any = None, *, title: str = "Label cleaning", show_rows: bool = True
    ) -> None:
        """Write the report, one HTML page, to `path`. Given the `X` of `fit`, its columns or its images are shown
        beside the suspects, with what speaks against each label. Without `show_rows` there is nothing about single
        rows on it.
        """
        from proxbi.cleaning.report.page import Run, Step
        from proxbi.cleaning.report.publish import publish

        check_is_fitted(self)
        ids = None if self._index is None else self._index.tolist()
        run = Run(seed=self._seed, digest=self._digest, made=time.strftime("%Y-%m-%d %H:%M %Z"))
        steps = [Step(*step) for step in NEXT_STEPS]
        publish(path, self._inputs, self.result_, X=X, ids=ids, title=title, run=run, steps=steps, show_rows=show_rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._is_own() or get_tags(self.estimator).input_tags.allow_nan
        return tags

    def _check_parameters(self, *, weighted: bool) -> None:
        if self.weights not in ("auto", "free"):
            raise ValueError(f"weights must be 'auto' or 'free', got {self.weights!r}.")
        checked_number(self.learn_from)
        check_fit_all(self.fit_all, self.weights, False)
        if not self._is_own() and not hasattr(self.estimator, "fit"):
            raise ValueError(f"estimator must be None, 'linear' or a classifier, got {self.estimator!r}.")
        if weighted and not self._is_own() and not has_fit_parameter(self.estimator, "sample_weight"):
            kind = type(self.estimator).__name__
            raise ValueError(
                f"sample_weight was given, and {kind}.fit does not take it. A Pipeline does not pass weights on: put "
                "LabelCleaner last in it instead, with metadata routing and set_fit_request(sample_weight=True)."
            )

    def _is_own(self) -> bool:
        """Whether the final classifier is one of ours, which works on the encoded features."""
        return self.estimator is None or (isinstance(self.estimator, str) and self.estimator == "linear")

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        if y is None:
            raise ValueError("LabelCleaner requires y to be passed, but the target y is None.")
        X = self._rows(X, reset=reset)
        name = "y" if reset else "y_val"
        if has_votes(y):
            check_consistent_length(X, y)
            check_classification_targets(read_ballots(y, Words(labels=name)).classes)
            return X, y
        y = require_labels(column_or_1d(y, warn=True), name)
        check_consistent_length(X, y)
        check_classification_targets(y)
        return X, y

    def _rows(self, X: Any, *, reset: bool) -> Any:
        """X as a data frame, or as an array of numbers, with the columns it had in `fit`."""
        if is_dask(X):
            raise TypeError("X must be in memory here, got a Dask data frame: take X.map_partitions(cleaner.predict).")
        if hasattr(X, "to_pandas"):
            X = X.to_pandas()
        if hasattr(X, "iloc") and getattr(X, "ndim", 2) == 2:
            validate_data(self, X, reset=reset, skip_check_array=True)
            if len(X) == 0:
                raise ValueError("X has no rows.")
            return X
        # Infinite values pass here and are refused by the encoder, which says where they are.
        return validate_data(self, X, reset=reset, dtype="numeric", ensure_all_finite=False, allow_nd=True)

    def _store(self, inputs: Inputs, cleaned: Cleaned) -> None:
        rows = slice(inputs.rows)
        self._digest = inputs.digest()
        self._inputs = replace(inputs, features=inputs.features[:0])  # not kept: as large as X
        self.result_ = cleaned
        self.classes_ = inputs.classes
        self.group_names_ = inputs.group_names
        self.sample_weight_ = cleaned.weight[rows]
        self.label_quality_ = cleaned.quality[rows]
        self.is_issue_ = cleaned.issue[rows]
        self.suggested_label_ = inputs.classes[cleaned.suggested[rows]]
        self.trusted_ = cleaned.trusted[rows]
        self.review_order_ = cleaned.review
        self.noise_rate_ = cleaned.noise_rate
        self.history_ = cleaned.history
        for name in OF_VOTES:
            self.__dict__.pop(name, None)  # of an earlier fit
        if cleaned.consensus is not None:
            self._store_consensus(inputs, cleaned.consensus.of_first(inputs.rows))

    def _store_consensus(self, inputs: Inputs, found: Consensus) -> None:
        self.consensus_label_ = inputs.classes[found.label]
        self.consensus_quality_ = found.quality
        self.vote_quality_ = found.vote_quality
        self.annotator_noise_ = dict(zip(inputs.annotators, found.annotators, strict=True))
        self.next_vote_gain_ = found.gain
        self.next_vote_order_ = found.next_votes

    def _final_fit(self, inputs: Inputs, cleaned: Cleaned, X: Any, X_val: Any) -> Any:
        if cleaned.consensus is not None:  # it is what is learned from several votes, and no row of it is flagged
            inputs = replace(inputs, labels=cleaned.consensus.label)
            cleaned = replace(cleaned, issue=np.zeros_like(cleaned.issue))
        if self.estimator is None:
            return kernel_fit(inputs, cleaned, self._seed)
        if self._is_own():
            return linear_fit(inputs, cleaned, self._seed)
        kept = kept_rows(inputs, cleaned)
        extra = {} if inputs.weight is None else {"sample_weight": inputs.weight[kept]}
        rows = _flat(X if X_val is None else _stacked(X, X_val))
        return fitted(clone(self.estimator), taken(rows, kept), inputs.classes[inputs.labels[kept]], **extra)

    def _own_probabilities(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        found = self.estimator_.predict_proba(self._inputs.encoder.transform(X))
        seen = getattr(self.estimator_, "classes_", None)
        return found if seen is None else spread(found, seen, len(self.classes_))


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _flat(X: Any) -> Any:
    """Images as rows of pixels, which is all that scikit-learn knows."""
    return X.reshape(len(X), -1) if isinstance(X, np.ndarray) else X


def _stacked(X: Any, X_val: Any) -> Any:
    if hasattr(X, "iloc"):
        import pandas as pd

        return pd.concat([X, X_val], ignore_index=True)
    return np.concatenate([X, X_val])
