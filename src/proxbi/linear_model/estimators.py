"""The estimators: the scikit-learn interface of `tuning`."""

import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from jaxtyping import Float

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import check_cv
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # untyped
except ImportError as error:
    raise ImportError("proxbi.linear_model needs scikit-learn 1.6 or newer: pip install 'proxbi[clean]'.") from error

from proxbi._process import require_a_working_jax
from proxbi.glm.losses import Logistic, Loss, Softmax, Squared
from proxbi.linear_model.choice import Choice, choose, tuned
from proxbi.linear_model.folds import from_splits
from proxbi.linear_model.tuning import RATIOS, Task, Tuned

if TYPE_CHECKING:
    import pandas as pd

UNSOLVED = 1e-4  # of the gradient at zero: a lower level that is further from a solution causes a warning
PER = ("auto", "all", "group", "feature")


class _Tuned(BaseEstimator):
    """The base of both estimators."""

    # No other estimator has these arguments, so they are requested by default in metadata routing.
    __metadata_request__fit = dict.fromkeys(("X_val", "y_val"), True)

    def __init__(
        self,
        penalty: Literal["ridge", "lasso", "elastic_net", "group_lasso"] = "ridge",
        *,
        per: Literal["auto", "all", "group", "feature"] = "auto",
        groups: Any = None,
        cv: Any = 5,
        upper_regularizer: Any = "auto",
    ) -> None:
        self.penalty = penalty
        self.per = per
        self.groups = groups
        self.cv = cv
        self.upper_regularizer = upper_regularizer

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None) -> Any:
        """Choose the penalties, and fit all rows with them.

        - `X`: numbers, an array, a data frame or a sparse matrix of SciPy, without missing values.
        - `sample_weight`: how much each row counts, in the fits and in the losses that judge them. Whole numbers are
          repetitions; of others only the ratios matter.
        - `X_val, y_val`: rows to judge by, in place of `cv`; they are among the rows of the final fit.
        """
        require_a_working_jax()
        self._check_parameters()
        X, y = self._checked(X, y, reset=True)
        rows = X.shape[0]
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val must be given together.")
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weights.any():
            raise ValueError("sample_weight is zero for all rows.")
        weights = _as_counts(weights)
        if X_val is None:
            splits = list(check_cv(self.cv, y, classifier=self._classifies()).split(X, y))
        else:
            X_val, y_val = self._checked(X_val, y_val, reset=False)
            unseen = np.setdiff1d(y_val, y if self._classifies() else y_val)
            if len(unseen):
                raise ValueError(f"y_val has a class that y does not have: {str(unseen[0])!r}.")
            X, y, weights = _stacked(X, X_val), np.append(y, y_val), np.append(weights, np.ones(len(y_val)))
            splits = [(np.arange(rows), np.arange(rows, len(y)))]
        groups = self._group_numbers(X.shape[1])
        loss, targets, outputs = self._targets(y)
        folds = from_splits(splits, weights)
        task = Task(loss, X, targets, outputs, weights, folds, self.penalty, groups)
        task.require_room(self.per)
        # On a busy machine the threads of BLAS and of XLA wait for one another.
        with jax.enable_x64(True), threadpool_limits(limits=1, user_api="blas"):
            choice = choose(task, self.per, self.upper_regularizer)
            found = tuned(task, choice)
        self._store(found, choice)
        return self

    def _store(self, found: Tuned, choice: Choice) -> None:
        factor = self._loss_factor
        if found.violation > UNSOLVED:
            warnings.warn(
                f"A fit is not solved: the distance from its optimality conditions is {found.violation:.1e} of the "
                "gradient at zero. Scale the columns of X to similar size, or remove columns that repeat others.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._choice = choice
        self.chosen_ = choice.candidate._asdict() | {"reason": choice.reason}
        self.penalty_ = found.penalty
        self.l1_ratio_ = found.ratio
        self.cv_loss_ = factor * found.loss
        self.history_ = [row | {"loss": factor * row["loss"]} for row in found.history]
        self.n_iter_ = len(self.history_)
        self._set_coefficients(found.coef[-1], found.intercept[-1])

    def to_frame(self) -> "pd.DataFrame":
        """One row for each feature, with its name: its coefficients, and its penalty."""
        import pandas as pd

        check_is_fitted(self)
        table = self._table()
        return pd.DataFrame(table).set_index("feature")

    def report(self, path: str | PathLike[str], *, title: str | None = None) -> None:
        """Write the report, one HTML page, to `path`: the choice, the reason for it, and the coefficients."""
        from proxbi.linear_model.page import write_report

        check_is_fitted(self)
        title = type(self).__name__ if title is None else title
        write_report(Path(path), title, self._choice, self.cv_loss_, self._loss_factor, self._loss_name, self._table())

    def _table(self) -> dict[str, Any]:
        names = getattr(self, "feature_names_in_", np.arange(self.n_features_in_))
        coef = np.atleast_2d(self.coef_)
        if len(coef) == 1:
            columns = {"coef": coef[0]}
        else:
            columns = {f"coef of {name}": one for name, one in zip(self.classes_, coef, strict=True)}
        return {"feature": np.asarray(names), **columns, "penalty": self.penalty_}

    def _check_parameters(self) -> None:
        for name, allowed in (("penalty", tuple(RATIOS)), ("per", PER)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
        if self.groups is None and (self.penalty == "group_lasso" or self.per == "group"):
            asked = "penalty='group_lasso'" if self.penalty == "group_lasso" else "per='group'"
            raise ValueError(f"groups must be given for {asked}: the group of each column of X.")
        given = self.upper_regularizer
        number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
        if not (given is None or given == "auto" or (number and given > 0)):
            raise ValueError(f"upper_regularizer must be 'auto', None or a number > 0, got {given!r}.")

    def _group_numbers(self, features: int) -> np.ndarray | None:
        if self.groups is None:
            return None
        groups = np.asarray(self.groups)
        if groups.shape != (features,):
            raise ValueError(
                f"groups must have one value for each of the {features} columns of X, got shape {groups.shape}."
            )
        if any(group is None or group != group for group in groups.tolist()):  # NaN is not itself
            raise ValueError("groups has missing values: each column of X needs a group.")
        return np.unique(groups, return_inverse=True)[1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse=["csr", "csc"], dtype=np.float64)
        return np.asarray(X @ self.coef_.T) + self.intercept_


class TunedLinearRegression(RegressorMixin, _Tuned):
    r"""Linear regression that chooses its penalties by cross-validation.

    $$\min_{w, b}\ \tfrac{1}{2 n} \sum_i (z_i' w + b - t_i)^2 + \sum_j \lambda_j \bigl(\rho\, |w_j| +
      \tfrac{1 - \rho}{2} w_j^2\bigr), \qquad \text{group Lasso: } \sum_g \lambda_g \sqrt{|g|}\, \lVert w_g\rVert$$

    with $\rho = 0$ (ridge), 1 (Lasso) or the better of 0.1, 0.5 and 0.9 (elastic net). The penalties are those with the
    least mean squared error over the folds, plus a prior where there are many: log penalties are normal around a line,
    which falls with the log sizes of the coefficients that one penalty leads to. Columns are not standardised, and the
    intercept has no penalty, as in scikit-learn.

    **Arguments:**

    - `penalty`: "ridge", "lasso", "elastic_net" or "group_lasso".
    - `per`: the number of penalties: "all", one for all features; "group" or "feature", one for each; "auto", one for
      all unless another choice is better by more than a standard error on rows that were not used to choose it.
    - `groups`: the group of each column of X, for "group" and for the group Lasso.
    - `cv`: folds, as in scikit-learn: an integer (in order, not shuffled), a splitter, or pairs of indices.
    - `upper_regularizer`: the precision of the prior, which is 1 / variance of the log penalties around their line;
      `np.inf` keeps them on it; "auto" uses inf, unless 10 or 1 is better by more than a standard error on rows not
      used to choose (with more than 300 features it always uses inf); None is no prior and no line (and overfits).

    After `fit`: `coef_`, `intercept_`; `penalty_`, one per feature, and `l1_ratio_`; `cv_loss_`, the
    cross-validated loss of these penalties; `chosen_`: the number of penalties, the precision, and the reason;
    `history_`, all penalties that were tried.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = TunedLinearRegression("lasso", per="all").fit(X, y)
    >>> round(model.cv_loss_), model.to_frame().query("coef == 0").index.tolist()
    (2992, ['s3'])

    Bertrand, Klopfenstein, Massias, Blondel, Vaiter, Gramfort, Salmon, "Implicit differentiation for fast
    hyperparameter selection in non-smooth convex learning", JMLR 23 (2022), differentiate the same problem.
    """

    _loss_factor = 2.0  # the squared error is twice the loss
    _loss_name = "squared error"

    def predict(self, X: Any) -> Float[np.ndarray, " rows"]:
        """The predicted target of each row."""
        return self._scores(X)

    def _classifies(self) -> bool:
        return False

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, reset=reset, accept_sparse=["csr", "csc"], dtype=np.float64, y_numeric=True)
        return X, np.asarray(y, np.float64)

    def _targets(self, y: np.ndarray) -> tuple[Loss, np.ndarray, int]:
        return Squared(), y[:, None], 1

    def _set_coefficients(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_, self.intercept_ = coef[0], float(intercept[0])


class TunedLogisticRegression(ClassifierMixin, _Tuned):
    r"""Logistic regression that chooses its penalties by cross-validation; softmax regression for several classes.

    $$\min_{W, b}\ \tfrac{1}{n} \sum_i \ell(W z_i + b, t_i) + \sum_j \lambda_j \bigl(\rho\, |w_j| +
      \tfrac{1 - \rho}{2} w_j^2\bigr)$$

    with the log loss of two or more classes. A feature has one penalty for all of its coefficients, and the penalty is
    relative to the *mean* loss: $\lambda = 1 / (C n)$ with the C of scikit-learn. `cv_loss_` is the mean log loss,
    and an integer `cv` means stratified folds. Attributes are those of `TunedLinearRegression`, and
    `classes_`.

    **Arguments:** `penalty`, `per`, `groups`, `upper_regularizer` and all others as for `TunedLinearRegression`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> names = np.array(["setosa", "versicolor", "virginica"])[y]
    >>> model = TunedLogisticRegression(per="all").fit(X, names)
    >>> model.predict(X[:1]).tolist(), bool(model.cv_loss_ < 0.15)
    (['setosa'], True)
    """

    _loss_factor, _loss_name = 1.0, "log loss"

    def decision_function(self, X: Any) -> np.ndarray:
        """The scores: of the second class if there are two, otherwise of each class."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of each of `classes_`."""
        scores = self._scores(X)
        scores = np.hstack([np.zeros_like(scores), scores]) if len(self.classes_) == 2 else scores
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The logarithms of these."""
        return np.log(self.predict_proba(X))

    def _classifies(self) -> bool:
        return True

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, np.ndarray]:
        X, y = validate_data(self, X, y, reset=reset, accept_sparse=["csr", "csc"], dtype=np.float64)
        check_classification_targets(y)
        return X, y

    def _targets(self, y: np.ndarray) -> tuple[Loss, np.ndarray, int]:
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only: {str(self.classes_[0])!r}.")
        if len(self.classes_) == 2:
            return Logistic(), numbers.astype(float)[:, None], 1
        return Softmax(), numbers, len(self.classes_)

    def _set_coefficients(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_, self.intercept_ = coef, intercept


def _as_counts(weights: np.ndarray) -> np.ndarray:
    """Whole numbers count rows. Others are scaled to add up to the effective number of rows, (sum w)^2 / sum w^2."""
    if np.array_equal(weights, np.round(weights)):
        return weights
    weights = weights / weights.max()
    return weights * weights.sum() / np.sum(weights**2)


def _stacked(X: Any, X_val: Any) -> Any:
    if hasattr(X, "tocsc"):
        from scipy.sparse import vstack

        return vstack([X, X_val]).tocsc()
    return np.vstack([X, X_val.toarray() if hasattr(X_val, "toarray") else X_val])
