"""Tuned linear models: exact lower levels and hypergradients, the minima of scikit-learn's grids, and its manners."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from proxbi.glm.losses import Logistic, Loss, Softmax, Squared
from proxbi.linear_model import TunedLinearRegression, TunedLogisticRegression, bilevel
from proxbi.linear_model import lower as exact
from proxbi.linear_model.choice import Candidate, _gain, _picked
from proxbi.linear_model.design import columns, padded, roomy
from proxbi.linear_model.estimators import _as_counts
from proxbi.linear_model.folds import from_splits
from proxbi.linear_model.path import Kind
from proxbi.linear_model.sizes import log_sizes
from proxbi.linear_model.tuning import Task
from proxbi.linear_model.working_set import LowerLevel, Strengths
from proxbi.problem import Problem

SLOW, HOURS = [pytest.mark.slow], [pytest.mark.slow, pytest.mark.hours]
ROWS, FEATURES, CLASSES = 90, 9, 3
GROUPS = np.arange(FEATURES) // 3
LOSSES: dict[str, tuple[Loss, int]] = {
    "squared": (Squared(), 1),
    "logistic": (Logistic(), 1),
    "softmax": (Softmax(), CLASSES),
}
KINDS = {"ridge": (0.0, False), "lasso": (1.0, False), "elastic net": (0.5, False), "group lasso": (1.0, True)}


def drawn(loss: str, seed: int = 0, features: int = FEATURES) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = (draw.normal(size=(ROWS, features)) + 0.5 * draw.normal(size=(ROWS, 1))) * np.geomspace(1, 5, features) + 2
    signal = (X[:, 0] - 2) - 0.2 * (X[:, 3] - 2) + draw.normal(size=ROWS)
    if loss == "squared":
        return X, signal
    return X, np.digitize(signal, [0.0] if loss == "logistic" else [-0.7, 0.7])


def lower_level(loss: str, kind: str = "lasso", seed: int = 0, features: int = FEATURES) -> LowerLevel:
    X, y = drawn(loss, seed, features)
    known, outputs = LOSSES[loss]
    targets = y if loss == "softmax" else y.astype(float)[:, None]
    grouped = KINDS[kind][1]
    units = GROUPS if grouped else np.arange(features)
    made = columns(X, np.ones(ROWS), units if grouped else None)
    return LowerLevel(known, made, targets, from_splits(KFold(5).split(X), np.ones(ROWS)), outputs, units, grouped)


def kind_of(lower: LowerLevel, ratio: float) -> Kind:
    return Kind(ratio, np.sqrt(np.bincount(lower.units)))


# --- the lower level --------------------------------------------------------------------------------------------------


def slopes(loss: str, X: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """l' of each row, written anew."""
    scores = X @ w.T + b
    if loss == "squared":
        return scores - y[:, None]
    if loss == "logistic":
        return 1 / (1 + np.exp(-scores)) - y[:, None]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]


# Each pair is a program of its own, and takes seconds to compile.
OFTEN = [("logistic", "lasso"), ("softmax", "ridge")]
PAIRS = [(loss, kind) for loss in LOSSES for kind in KINDS]


@pytest.mark.parametrize(
    ("loss", "kind"),
    [pair if pair[0] == "squared" else pytest.param(*pair, marks=SLOW if pair in OFTEN else HOURS) for pair in PAIRS],
)
def test_all_folds_satisfy_the_optimality_conditions(loss: str, kind: str) -> None:
    lower, (ratio, grouped) = lower_level(loss, kind), KINDS[kind]
    X, y = drawn(loss)
    largest = float(np.max(lower.null().strengths.norm / kind_of(lower, ratio).weight))
    penalty = 0.4 * largest  # at the largest, all coefficients are zero
    with jax.enable_x64(True):
        solution = lower.solve(kind_of(lower, ratio).strengths(penalty, lower.units))
    coef, intercept = lower.coefficients(solution)
    splits = [train for train, _ in KFold(5).split(X)] + [np.arange(ROWS)]
    for train, w, b in zip(splits, coef, intercept, strict=True):
        slope = slopes(loss, X[train], y[train], w, b) / len(train)
        np.testing.assert_allclose(slope.sum(axis=0), 0, atol=1e-8)
        gradient = slope.T @ X[train] + (1 - ratio) * penalty * w
        if grouped:
            blocks = [(gradient[:, g == GROUPS], w[:, g == GROUPS], penalty * np.sqrt(3)) for g in range(3)]
        else:
            blocks = [(gradient[k, [j]], w[k, [j]], ratio * penalty) for k in range(len(w)) for j in range(FEATURES)]
        for part, own, strength in blocks:
            size = np.linalg.norm(own)
            if size > 0:
                np.testing.assert_allclose(part, -strength * own / size, atol=1e-7)
            else:
                assert np.linalg.norm(part) <= strength * (1 + 1e-7)
    zeros = np.sum(coef == 0)
    assert (0 < zeros < coef.size) if ratio > 0 else zeros == 0


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), log_penalty=st.floats(-4, 0.5), ratio=st.sampled_from([0.0, 0.5, 1.0]))
def test_the_fit_to_all_rows_is_that_of_scikit_learn(seed: int, log_penalty: float, ratio: float) -> None:
    lower, penalty = lower_level("squared", seed=seed), 10**log_penalty
    X, y = drawn("squared", seed)
    with jax.enable_x64(True):
        coef, intercept = lower.coefficients(lower.solve(kind_of(lower, ratio).strengths(penalty, lower.units)))
    if ratio == 0:
        peer: Any = Ridge(ROWS * penalty)
    else:
        peer = Lasso(penalty, tol=1e-12) if ratio == 1 else ElasticNet(penalty, l1_ratio=ratio, tol=1e-12)
    peer.fit(X, y)
    np.testing.assert_allclose(coef[-1, 0], peer.coef_, atol=1e-6)
    np.testing.assert_allclose(intercept[-1, 0], peer.intercept_, atol=1e-5)


def test_working_sets_leave_nothing_out() -> None:
    lower = lower_level("squared", features=300)
    X, y = drawn("squared", features=300)
    kind, solution = kind_of(lower, 1.0), None
    with jax.enable_x64(True):
        for penalty in (3.0, 1.0, 0.5):
            solution = lower.solve(kind.strengths(penalty, lower.units), solution)
    assert solution is not None
    coef, intercept = lower.coefficients(solution)
    residual = X @ coef[-1, 0] + intercept[-1] - y
    gradient = residual @ X / ROWS
    support = coef[-1, 0] != 0
    assert 0 < support.sum() < 64
    np.testing.assert_allclose(gradient[support], -0.5 * np.sign(coef[-1, 0][support]), atol=1e-7)
    assert np.all(np.abs(gradient) <= 0.5 * (1 + 1e-6))


def test_repeated_columns_are_no_harm() -> None:
    X, y = drawn("squared")
    model = TunedLinearRegression("lasso", per="all").fit(np.hstack([X, X[:, :4]]), y)
    assert model.cv_loss_ == pytest.approx(TunedLinearRegression("lasso", per="all").fit(X, y).cv_loss_, rel=1e-6)


@given(st.integers(1, 10**6))
def test_sizes_of_programs_hold_what_they_are_for(size: int) -> None:
    assert size <= padded(size) <= max(16, 2 * size)
    assert size <= roomy(size) <= max(64, 2 * size)
    if size > 64:
        assert padded(size) <= 1.125 * size + 1


# --- the hypergradient ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("squared", "ridge"),
        pytest.param("squared", "elastic net", marks=SLOW),
        *(pytest.param("squared", kind, marks=HOURS) for kind in ("lasso", "group lasso")),
        *(pytest.param("logistic", kind, marks=HOURS) for kind in ("ridge", "lasso")),
        *(pytest.param("softmax", kind, marks=HOURS) for kind in ("ridge", "lasso")),
    ],
)
def test_hypergradients_are_differences(loss: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "TOLERANCE", 1e-13)  # 1e-9, as it is, would be 1e-5 of a step
    lower, ratio = lower_level(loss, kind), KINDS[kind][0]
    made, penalty = kind_of(lower, ratio), 0.13
    solution = lower.solve(made.strengths(penalty, lower.units))
    factors = Strengths(ratio * made.weight, (1 - ratio) * np.ones(FEATURES))
    draw = np.random.default_rng(2)
    work = lower.at_work(solution, factors, lower.units, draw.normal(size=(6, FEATURES)))
    x = {"all": np.log(penalty), "lean": 0.2, "own": 0.3 * draw.normal(size=FEATURES)}
    way = {"all": 0.7, "lean": -0.4, "own": draw.normal(size=FEATURES)}
    x, way = (jax.tree.map(jnp.asarray, part) for part in (x, way))
    problem = Problem(bilevel._upper, bilevel._lower, data=work.data)
    hypergradient = bilevel.OnFace(smooth=ratio == 0)

    @jax.jit
    def evaluate(step: Any) -> Any:
        at = jax.tree.map(lambda a, b: a + step * b, x, way)
        return hypergradient(problem, at, hypergradient.init(problem, at, work.u), way, 0.1)

    step = 1e-4
    near, far = (float(evaluate(k * step).value - evaluate(-k * step).value) for k in (1.0, 2.0))
    difference = (8 * near - far) / (12 * step)
    found = evaluate(0.0)
    slope = sum(float(jnp.vdot(found.grad[name], way[name])) for name in x)
    assert slope == pytest.approx(difference, rel=1e-6)
    wrong = jax.tree.map(lambda part: jnp.roll(part, 1) if part.ndim else -part, found.grad)  # a control
    assert sum(float(jnp.vdot(wrong[name], way[name])) for name in x) != pytest.approx(difference, rel=1e-2)


# --- one penalty, beside scikit-learn's grids -------------------------------------------------------------------------


def test_lasso_cv_is_matched_or_beaten() -> None:
    X, y = load_diabetes(return_X_y=True)
    largest = np.abs((X - X.mean(axis=0)).T @ (y - y.mean())).max() / len(y)
    grid = np.geomspace(largest, 1e-3 * largest, 100)  # its own; versions before 1.7 take no number of them as `alphas`
    peer = LassoCV(alphas=grid, cv=5).fit(X, y)
    model = TunedLinearRegression("lasso", per="all").fit(X, y)
    assert model.cv_loss_ <= peer.mse_path_.mean(axis=1).min() * (1 + 1e-6)
    # A penalty is the same for folds and for all rows.
    reference = Lasso(model.penalty_[0], tol=1e-10, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-3)
    losses = []
    for train, test in KFold(5).split(X):
        reference.fit(X[train], y[train])
        losses.append(np.mean((reference.predict(X[test]) - y[test]) ** 2))
    assert model.cv_loss_ == pytest.approx(np.mean(losses), rel=1e-6)


def test_ridge_cv_is_matched_or_beaten() -> None:
    X, y = load_diabetes(return_X_y=True)
    peer = RidgeCV(np.geomspace(1e-5, 1e3, 100), cv=5, scoring="neg_mean_squared_error").fit(X, y)
    assert TunedLinearRegression(per="all").fit(X, y).cv_loss_ <= -peer.best_score_ * (1 + 1e-9)


@pytest.mark.parametrize("weights", [(1.0, 2.0, 3.0, 4.0), (0.0, 1.0, 2.0, 3.0)])
def test_columns_of_different_units_get_a_ridge_that_suits_the_small_ones(weights: tuple[float, ...]) -> None:
    """The path ended where a column with large numbers, of no use, was fitted: the loss was ten times too large."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(100, 4))
    y = X @ np.array(weights) + draw.normal(size=100)
    X = X * [1e5, 100.0, 1.0, 0.01]
    model = TunedLinearRegression("ridge", per="all", cv=KFold(5)).fit(X, y)
    free = make_pipeline(StandardScaler(), LinearRegression())
    assert model.cv_loss_ < -1.001 * cross_val_score(free, X, y, cv=KFold(5), scoring="neg_mean_squared_error").mean()


def test_more_columns_than_rows() -> None:
    X, y = drawn("squared", features=300)
    model = TunedLinearRegression(per="all").fit(X, y)
    peer = Ridge(ROWS * model.penalty_[0], tol=1e-12).fit(X, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-7)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-6)


@pytest.mark.slow
@pytest.mark.hours  # outside of CI, for its minutes
def test_logistic_regression_cv_is_matched_or_beaten() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of futures
        peer = LogisticRegressionCV(Cs=25, cv=5, scoring="neg_log_loss").fit(X, y)
    scores = next(iter(peer.scores_.values())) if isinstance(peer.scores_, dict) else peer.scores_
    model = TunedLogisticRegression(per="all").fit(X, y)
    assert model.cv_loss_ <= -scores.reshape(5, -1).mean(axis=0).max() * (1 + 1e-6)
    reference = LogisticRegression(C=1 / (model.penalty_[0] * len(y)), tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, reference.coef_, atol=1e-4)


# --- many penalties ---------------------------------------------------------------------------------------------------


def irrelevant(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two columns matter, fourteen do not."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(2 * ROWS, 16))
    return X, 2 * X[:, 0] - 3 * X[:, 1] + 2 * draw.normal(size=2 * ROWS)


@pytest.mark.slow
def test_a_prior_keeps_penalties_together_and_none_overfits() -> None:
    X, y = irrelevant()
    X, y, unseen, target = X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]
    found = {
        strength: TunedLinearRegression(per="feature", upper_regularizer=strength).fit(X, y)
        for strength in (100.0, 0.3, None)
    }
    one = TunedLinearRegression(per="all").fit(X, y)
    spread = {strength: np.ptp(np.log(model.penalty_)) for strength, model in found.items()}
    assert 0 < spread[100.0] < spread[0.3] < spread[None]
    # The weaker the prior, the lower the loss on the rows that chose, and the larger the gap to others.
    losses = [one.cv_loss_, *(found[strength].cv_loss_ for strength in (100.0, 0.3, None))]
    assert losses == sorted(losses, reverse=True)
    gaps = {s: np.mean((m.predict(unseen) - target) ** 2) - m.cv_loss_ for s, m in found.items()}
    assert gaps[None] > gaps[0.3]
    assert np.log(found[0.3].penalty_[2:]).mean() > np.log(found[0.3].penalty_[:2]).mean() + 1
    assert found[0.3].chosen_["per"] == "feature"


@pytest.mark.slow
@pytest.mark.hours
def test_auto_says_what_it_picked_and_why(tmp_path: Path) -> None:
    X, y = irrelevant()
    model = TunedLinearRegression(per="auto").fit(X, y)
    assert model.chosen_["per"] == "feature"
    assert "rows that had no part" in model.chosen_["reason"]
    draw = np.random.default_rng(1)
    dense = draw.normal(size=16)
    plain = TunedLinearRegression(per="auto").fit(X, X @ dense / 4 + 2 * draw.normal(size=len(X)))
    assert plain.chosen_["per"] == "all"
    assert len(set(plain.penalty_)) == 1
    model.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert model.chosen_["reason"] in page
    assert "one penalty for each feature" in page


@pytest.mark.slow
@pytest.mark.hours
def test_groups_share_their_penalties() -> None:
    X, y = irrelevant()
    groups = np.array(["good"] * 2 + ["bad"] * 14)
    model = TunedLinearRegression("lasso", per="group", groups=groups, upper_regularizer=0.1).fit(X, y)
    assert len(set(model.penalty_[:2])) == len(set(model.penalty_[2:])) == 1
    assert model.penalty_[2] > model.penalty_[0]
    grouped = TunedLinearRegression("group_lasso", per="all", groups=groups).fit(X, y)
    vanished = grouped.coef_[2:] == 0
    assert vanished.all() or not vanished.any()


def test_a_row_of_weight_two_is_two_rows() -> None:
    draw = np.random.default_rng(0)
    gains, weights = draw.normal(size=20), draw.integers(1, 4, 20)
    fold = np.arange(20) % 4

    def judged(gains: np.ndarray, fold: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
        splits = [(fold != one, fold == one) for one in range(4)]
        known, rows = Squared(), np.zeros((len(gains), 1))
        return _gain(gains, Task(known, rows, rows, 1, weights, from_splits(splits, weights), "ridge", None))

    once = judged(gains, fold, weights.astype(float))
    repeated = judged(np.repeat(gains, weights), np.repeat(fold, weights), np.ones(weights.sum()))
    assert once == pytest.approx(repeated)
    alike = judged(fold - 1.5, fold, np.ones(20))  # the rows of a fold say the same: there are four, not twenty
    # Their fits share two thirds of their rows: the error is larger than that of four independent numbers.
    assert alike[1] == pytest.approx(np.std([-1.5, -0.5, 0.5, 1.5], ddof=1) * np.sqrt(1 / 4 + 1 / 3))


def test_sizes_are_squares_and_errors_and_never_saw_the_rows_that_judge() -> None:
    lower, X = lower_level("squared", "ridge"), drawn("squared")[0]
    rows, noise = np.full(6, 72.0), 0.7
    with jax.enable_x64(True):
        solution = lower.solve(kind_of(lower, 0.0).strengths(1e-9, lower.units))
        found = log_sizes(lower, solution, GROUPS, rows, noise)
        single = log_sizes(lower, solution, np.arange(FEATURES), rows, noise)
        # Another penalty changes coefficients, and sizes by far less: they are those without it.
        heavy = lower.solve(kind_of(lower, 0.0).strengths(np.eye(FEATURES)[0] * 30.0, lower.units))
        freed = log_sizes(lower, heavy, np.arange(FEATURES), rows, noise)
        lower.targets = np.where(lower.folds.judge[2][:, None] > 0, 100.0, lower.targets)
        unseen = log_sizes(lower, solution, GROUPS, rows, noise)
    coef = lower.coefficients(solution)[0][:, 0]
    variance = coef**2 + noise / rows[:, None] / X.std(axis=0) ** 2
    for sizes, parts in ((found, variance.reshape(6, 3, 3).mean(axis=2)), (single, variance)):
        expected = np.log(parts) - np.log(parts).mean(axis=1, keepdims=True)
        np.testing.assert_allclose(sizes, expected, atol=1e-4)
    shrunk = heavy.u[-1, 0, 0] / solution.u[-1, 0, 0]
    assert abs(freed[-1, 0] - single[-1, 0]) < 0.25 * abs(2 * np.log(abs(shrunk)))
    np.testing.assert_array_equal(unseen[2], found[2])
    assert np.all(np.any(unseen[[0, 1, 3, 4]] != found[[0, 1, 3, 4]], axis=1))  # they were fitted to these rows


def evidence(**losses: Any) -> tuple[Any, Task]:
    """Losses of candidates, in order, on twenty rows in four folds."""
    splits = [(np.arange(20) % 4 != fold, np.arange(20) % 4 == fold) for fold in range(4)]
    rows, weights = np.zeros((20, 1)), np.ones(20)
    task = Task(Squared(), rows, rows, 1, weights, from_splits(splits, weights), "ridge", None)
    names = {"one": Candidate("all"), "line": Candidate("feature", np.inf), "free": Candidate("feature", 1.0)}
    return {names[name]: np.ones(20) - gain for name, gain in losses.items()}, task


def test_a_gain_of_rounding_is_none() -> None:
    def pick(gain: float) -> str:
        return _picked(*evidence(one=0.0, line=gain), "auto", "").candidate.per

    assert pick(1e-12) == "all"
    assert pick(1e-2) == "feature"


def test_the_simplest_is_kept_unless_another_is_better_by_more_than_its_error() -> None:
    noise = np.random.default_rng(0).normal(size=20)

    def pick(**gains: Any) -> Candidate:
        return _picked(*evidence(one=0.0, **gains), "auto", "").candidate

    assert pick(line=0.01 + noise) == Candidate("all")
    assert pick(line=0.5 + 0.1 * noise, free=0.51 + 0.5 * noise) == Candidate("feature", np.inf)
    assert pick(line=0.5 + 0.1 * noise, free=0.8 + 0.1 * noise) == Candidate("feature", 1.0)
    asked = _picked(*evidence(one=0.0, line=noise - 9, free=noise - 10), "feature", "")
    assert asked.candidate == Candidate("feature", np.inf)  # one penalty is no candidate then
    assert "higher than with one penalty" in asked.reason


def test_fewer_than_three_folds_leave_no_evidence() -> None:
    X, y = drawn("squared")
    model = TunedLinearRegression(cv=2).fit(X, y)
    assert model.chosen_["per"] == "all"
    assert "fewer than three folds" in model.chosen_["reason"]
    assert Candidate("feature", 1.0).words() == "one penalty for each feature, by size and with a prior of precision 1"


def test_a_fold_that_is_held_out_has_no_part() -> None:
    X, _ = drawn("squared")
    folds = from_splits(KFold(5).split(X), np.ones(ROWS))
    inner = folds.without(2)
    held_out = folds.judge[2] > 0
    assert not np.any(inner.fit[:, held_out])
    assert not np.any(inner.judge[[0, 1, 3, 4]][:, held_out])
    assert inner.importance[2] == 0
    assert inner.judged == [0, 1, 3, 4]
    np.testing.assert_allclose(inner.fit.sum(axis=1), 1)


# --- scikit-learn's manners -------------------------------------------------------------------------------------------


@parametrize_with_checks([TunedLinearRegression(per="all")])
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([TunedLogisticRegression(per="all")])
def test_scikit_learn_accepts_the_classifier(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.hours
@parametrize_with_checks(
    [
        TunedLinearRegression(),
        TunedLogisticRegression(),
        TunedLinearRegression("lasso", per="all"),
        TunedLogisticRegression("lasso", per="all"),
        TunedLinearRegression("elastic_net", per="all"),
    ]
)
def test_scikit_learn_accepts_the_others(estimator: Any, check: Any) -> None:
    check(estimator)


def test_names_in_and_names_out(tmp_path: Path) -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = TunedLinearRegression(per="all").fit(X, y)
    assert model.feature_names_in_.tolist() == X.columns.tolist()
    frame = model.to_frame()
    assert frame.index.tolist() == X.columns.tolist()
    assert frame.columns.tolist() == ["coef", "penalty"]
    model.report(tmp_path / "page.html", title="<b>diabetes</b>")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;diabetes" in page
    assert all(name in page for name in X.columns)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(NotFittedError):
        clone(model).to_frame()


@pytest.mark.slow
def test_strings_and_sparse_matrices() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    dense = TunedLogisticRegression(per="all").fit(X, names)
    thin = TunedLogisticRegression(per="all").fit(sparse.csr_matrix(X), names)
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-5, atol=1e-7)
    assert dense.classes_.tolist() == sorted(set(names))
    assert dense.score(X, names) > 0.95
    np.testing.assert_allclose(dense.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_allclose(dense.coef_.sum(axis=0), 0, atol=1e-6)  # a ridge prefers no class
    folds = StratifiedKFold(5).split(X, y)
    assert TunedLogisticRegression(per="all", cv=list(folds)).fit(X, names).cv_loss_ == pytest.approx(dense.cv_loss_)


def test_weights_are_repetitions_and_rows_to_judge_by_replace_folds() -> None:
    X, y = drawn("squared")
    model = TunedLinearRegression(per="all")
    weights = np.where(np.arange(ROWS) < 60, 2.0, 0.0)
    judged = model.fit(X[:60], y[:60], X_val=X[60:], y_val=y[60:])
    same = clone(model).set_params(cv=[(np.arange(60), np.arange(60, ROWS))]).fit(X, y)
    np.testing.assert_allclose(judged.coef_, same.coef_)
    folds = list(KFold(5).split(X[:60]))
    some = clone(model).set_params(cv=folds).fit(X, y, weights)
    np.testing.assert_allclose(some.coef_, clone(model).set_params(cv=folds).fit(X[:60], y[:60]).coef_, rtol=1e-5)


def test_searches_and_pipelines() -> None:
    X, y = drawn("squared")
    search = GridSearchCV(TunedLinearRegression(per="all"), {"penalty": ["ridge", "lasso"]}, cv=2).fit(X, y)
    assert search.best_params_["penalty"] in ("ridge", "lasso")
    piped = make_pipeline(StandardScaler(), TunedLinearRegression(per="all")).fit(X, y)
    assert piped.score(X, y) > 0.5


BAD = {
    "penalty": ({"penalty": "l1"}, {}, "penalty must be one of 'ridge'"),
    "per": ({"per": "row"}, {}, "per must be one of"),
    "groups missing": ({"per": "group"}, {}, "groups must be given for per='group'"),
    "groups missing for the group Lasso": ({"penalty": "group_lasso"}, {}, "groups must be given for penalty="),
    "groups of another length": ({"groups": [0, 1]}, {}, "groups must have one value for each of the 9 columns"),
    "groups with a gap": ({"groups": [None, *"abcdefgh"]}, {}, "groups has missing values"),
    "groups with NaN": ({"groups": [np.nan, *range(8)]}, {}, "groups has missing values"),
    "upper_regularizer NaN": ({"upper_regularizer": np.nan}, {}, "upper_regularizer must be"),
    "upper_regularizer": ({"upper_regularizer": -1.0}, {}, "upper_regularizer must be 'auto', None or a number > 0"),
    "upper_regularizer True": ({"upper_regularizer": True}, {}, "upper_regularizer must be"),
    "cv too large": ({"cv": 1000}, {}, "Cannot have number of splits"),
    "cv without splits": ({"cv": []}, {}, "cv"),
    "weights all zero": ({}, {"sample_weight": np.zeros(ROWS)}, "non-zero|zero for all rows"),
    "weights negative": ({}, {"sample_weight": np.full(ROWS, -1.0)}, "[Nn]egative"),
    "weights of another length": ({}, {"sample_weight": np.ones(3)}, "sample_weight"),
    "X_val alone": ({}, {"X_val": np.zeros((3, FEATURES))}, "X_val and y_val must be given together"),
    "X_val with other columns": ({}, {"X_val": np.zeros((3, 2)), "y_val": np.zeros(3)}, "2 features"),
    "a fold without rows": ({"cv": [([], [0])]}, {}, "no training rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name(case: str) -> None:
    X, y = drawn("squared")
    options, arguments, words = BAD[case]
    with pytest.raises((ValueError, TypeError), match=words):
        TunedLinearRegression(**options).fit(X, y, **arguments)


def test_a_ridge_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match="too many columns for penalty='ridge' with per='feature'"):
        TunedLinearRegression(per="feature").fit(np.zeros((20, 6000)), np.arange(20.0))


def test_missing_values_and_single_classes_are_refused() -> None:
    X, y = drawn("logistic")
    with pytest.raises(ValueError, match="NaN"):
        TunedLogisticRegression().fit(np.where(X > 9, np.nan, X), y)
    with pytest.raises(ValueError, match="one class"):
        TunedLogisticRegression().fit(X, np.zeros(ROWS, int))
    with pytest.raises(ValueError, match="continuous"):
        TunedLogisticRegression().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="y_val has a class that y does not have: 'maybe'"):
        TunedLogisticRegression().fit(X, y.astype(str), X_val=X[:2], y_val=["0", "maybe"])


def test_a_constant_target_needs_no_coefficients() -> None:
    X, _ = drawn("squared")
    for penalty in ("ridge", "lasso"):
        model = TunedLinearRegression(penalty, per="all").fit(X, np.full(ROWS, 3.0))
        np.testing.assert_allclose(model.coef_, 0, atol=1e-10)
        assert model.intercept_ == pytest.approx(3.0)


@pytest.mark.slow
def test_data_that_need_no_penalty_or_a_huge_one() -> None:
    """Nothing is left to gain by many penalties; and columns whose units differ by 16 decades."""
    X, y = drawn("squared")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        constant = TunedLinearRegression().fit(X, np.full(ROWS, 3.0))
        np.testing.assert_allclose(constant.predict(X), 3.0)
        units = np.geomspace(1e-8, 1e8, FEATURES)
        scaled = TunedLinearRegression(per="feature", upper_regularizer=np.inf).fit(X * units, y)
    alike = TunedLinearRegression(per="feature", upper_regularizer=np.inf).fit(X, y)
    one = TunedLinearRegression(per="all").fit(X * units, y)
    assert scaled.cv_loss_ - alike.cv_loss_ < 0.1 * (one.cv_loss_ - alike.cv_loss_)


def test_weights_are_counts_or_ratios() -> None:
    weights = np.random.default_rng(0).integers(0, 4, 50).astype(float)
    np.testing.assert_array_equal(_as_counts(weights), weights)
    ratios = _as_counts(1e-300 * np.full(50, 0.5))
    np.testing.assert_allclose(ratios, 1.0)  # fifty rows alike are fifty rows, whatever the unit
    np.testing.assert_allclose(_as_counts(weights / 7), _as_counts(weights / 1e9))
    assert _as_counts(weights / 7).sum() == pytest.approx(weights.sum() ** 2 / np.sum(weights**2))
