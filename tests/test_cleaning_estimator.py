"""LabelCleaner in scikit-learn code."""

import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests import stand_in
from tests.stand_in import RARELY_REAL, using

from proxbi.cleaning import CleaningWarning, LabelCleaner, TrustedScorer
from proxbi.cleaning import clean as real_clean
from proxbi.cleaning.inputs.features import Encoder
from proxbi.cleaning.inputs.prepare import looks_untransformed

ROWS, TRUSTED, CLASSES = 500, 100, 5


@pytest.fixture(scope="module", params=RARELY_REAL)
def method(request):
    with using(request.param):
        yield request.param


# For tests of many fits, or with tables of sizes for which the real method is compiled anew.
@pytest.fixture(params=RARELY_REAL)
def rarely_real(request):
    with using("stand-in") if request.param == "stand-in" else patch("proxbi.cleaning.run.clean", real_clean):
        yield


@parametrize_with_checks([LabelCleaner(), LabelCleaner(GaussianNB())])
@pytest.mark.filterwarnings("ignore::proxbi.cleaning.CleaningWarning")
def test_scikit_learn_accepts_it(rarely_real, estimator, check):
    check(estimator)


class Data:
    """Digits 0 to 4: rows that can be trusted come last; 20 % of the other labels are wrong."""

    def __init__(self):
        X, y = load_digits(n_class=CLASSES, return_X_y=True)
        self.X, self.truth = X[:ROWS], y[:ROWS]
        self.test = X[ROWS:], y[ROWS:]
        draw = np.random.default_rng(0)
        self.trusted = np.arange(ROWS) >= ROWS - TRUSTED
        self.wrong = np.isin(np.arange(ROWS), draw.choice(ROWS - TRUSTED, 80, replace=False))
        self.y = np.where(self.wrong, (self.truth + draw.integers(1, CLASSES, ROWS)) % CLASSES, self.truth)


@pytest.fixture(scope="module")
def data(method):
    return Data()


@pytest.fixture(scope="module")
def fitted(data):
    return LabelCleaner().fit(data.X, data.y, trusted=data.trusted)


def f1(flagged, wrong):
    return 2 * np.sum(flagged & wrong) / (np.sum(flagged) + np.sum(wrong))


def test_it_finds_wrong_labels_and_the_right_ones(data, fitted):
    assert f1(fitted.is_issue_, data.wrong) > 0.9
    assert not fitted.is_issue_[data.trusted].any()
    assert np.mean(fitted.suggested_label_[data.wrong] == data.truth[data.wrong]) > 0.85
    assert np.array_equal(fitted.suggested_label_[~fitted.is_issue_], data.y[~fitted.is_issue_])
    assert fitted.label_quality_[data.wrong].mean() < 0.2 < 0.8 < fitted.label_quality_[~data.wrong].mean()
    assert (fitted.sample_weight_[data.trusted] == 1).all()
    assert ((fitted.sample_weight_ >= 0) & (fitted.sample_weight_ <= 1)).all()
    assert fitted.noise_rate_.low <= 0.2 <= fitted.noise_rate_.high
    assert len(fitted.history_) > 0


def test_clean_labels_are_left_alone(data):
    cleaner = LabelCleaner().fit(data.X, data.truth, trusted=data.trusted)
    assert cleaner.is_issue_.mean() <= 0.02


@pytest.mark.slow
def test_the_final_model_is_better_than_one_of_the_noisy_rows(data, fitted):
    noisy = LogisticRegression(max_iter=2000).fit(data.X, data.y).score(*data.test)
    assert fitted.score(*data.test) > noisy
    assert LabelCleaner("linear").fit(data.X, data.y, trusted=data.trusted).score(*data.test) > noisy
    chances = fitted.predict_proba(data.test[0])
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    assert np.array_equal(fitted.classes_[chances.argmax(axis=1)], fitted.predict(data.test[0]))


def test_places_mean_the_same_as_a_mask(data, fitted):
    by_place = LabelCleaner().fit(data.X, data.y, trusted=np.flatnonzero(data.trusted))
    assert np.array_equal(by_place.label_quality_, fitted.label_quality_)


def test_rows_apart_are_as_good_as_marked_ones(data):
    rest, gold = ~data.trusted, data.trusted
    cleaner = LabelCleaner().fit(data.X[rest], data.y[rest], X_val=data.X[gold], y_val=data.y[gold])
    assert len(cleaner.is_issue_) == rest.sum()
    assert f1(cleaner.is_issue_, data.wrong[rest]) > 0.9


def test_without_trusted_rows_it_warns_and_still_works(rarely_real):
    data = Data()
    with pytest.warns(CleaningWarning, match="trusted"):
        cleaner = LabelCleaner().fit(data.X, data.y)
    assert f1(cleaner.is_issue_, data.wrong) > 0.85


def test_labels_may_be_text_and_images_may_be_images(data, fitted):
    names = np.array(["null", "eins", "zwei", "drei", "vier"])
    cleaner = LabelCleaner().fit(data.X.reshape(-1, 8, 8), names[data.y], trusted=data.trusted)
    assert set(cleaner.classes_) == set(names)
    assert np.mean(cleaner.is_issue_ == fitted.is_issue_) > 0.98
    assert np.mean(cleaner.suggested_label_[data.wrong] == names[data.truth[data.wrong]]) > 0.85
    assert set(cleaner.predict(data.test[0].reshape(-1, 8, 8))) <= set(names)


def test_a_frame_comes_back_with_its_index(data):
    frame = pd.DataFrame(data.X, index=[f"row {i}" for i in range(ROWS)]).rename(columns=str)
    frame["kind"] = np.where(data.truth > 2, "high", "low")
    frame.iloc[::9, 20] = np.nan
    found = LabelCleaner().fit(frame, pd.Series(data.y), trusted=pd.Series(data.trusted)).to_frame()
    assert found.index.equals(frame.index)
    assert list(found) == ["given_label", "suggested_label", "weight", "quality", "issue", "trusted"]
    assert np.array_equal(found["given_label"], data.y)
    assert f1(found["issue"].to_numpy(), data.wrong) > 0.9


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
@pytest.mark.filterwarnings("ignore:Weights 'free' were requested")
def test_one_parameter_for_each_row_may_be_asked_for():
    data = Data()
    cleaner = LabelCleaner(weights="free").fit(data.X, data.y, trusted=data.trusted)
    assert cleaner.result_.chosen == "free"
    assert np.isfinite([cleaner.history_[0].upper, cleaner.history_[0].held_out]).all()
    rest = ~data.trusted
    assert cleaner.sample_weight_[data.wrong].mean() < cleaner.sample_weight_[rest & ~data.wrong].mean()
    assert f1(cleaner.is_issue_, data.wrong) > 0.85


def test_the_same_seed_gives_the_same_and_copies_are_copies(data, fitted):
    again = clone(fitted).fit(data.X, data.y, trusted=data.trusted)
    assert np.array_equal(again.label_quality_, fitted.label_quality_)
    loaded = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(loaded.predict_proba(data.test[0]), fitted.predict_proba(data.test[0]))


def test_a_bad_annotator_stands_out(rarely_real):
    data = Data()
    draw = np.random.default_rng(1)
    who = draw.choice(["ann", "bob", "cid"], ROWS)
    y = np.where((who == "bob") & ~data.trusted & (draw.random(ROWS) < 0.7), (data.truth + 1) % CLASSES, data.truth)
    cleaner = LabelCleaner().fit(data.X, y, trusted=data.trusted, groups=who)
    rates = {cleaner.group_names_[each.which]: each.share.estimate for each in cleaner.result_.noise_by_group}
    assert rates["bob"] > 0.4
    assert max(rates["ann"], rates["cid"]) < 0.2


class Recorder(ClassifierMixin, BaseEstimator):
    """Remembers what it was given."""

    def fit(self, X, y):
        self.X_, self.y_, self.classes_ = X, y, np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


def test_any_classifier_gets_the_kept_rows_as_they_came(data):
    frame = pd.DataFrame(data.X).rename(columns="p{}".format)
    gold = data.trusted
    names = np.array(list("abcde"))
    cleaner = LabelCleaner(Recorder())
    cleaner.fit(frame[~gold], names[data.y[~gold]], X_val=frame[gold], y_val=names[data.y[gold]])
    kept = np.concatenate([~cleaner.is_issue_, np.ones(TRUSTED, bool)])
    pd.testing.assert_frame_equal(cleaner.estimator_.X_, frame[kept])
    assert np.array_equal(cleaner.estimator_.y_, names[data.y[kept]])
    assert not hasattr(cleaner, "predict_proba")
    assert hasattr(LabelCleaner(LogisticRegression()), "predict_proba")
    assert not hasattr(LabelCleaner(LinearSVC()), "predict_proba")


@pytest.mark.filterwarnings("ignore:More than 80%")  # of the rows that count and are called 0 none is
def test_sample_weights_reach_the_final_model(data):
    weight = np.where(data.truth == 0, 0.0, 1.0)
    cleaner = LabelCleaner(GaussianNB()).fit(data.X, data.y, weight, trusted=data.trusted)
    assert cleaner.estimator_.class_count_.sum() == np.sum(weight[~cleaner.is_issue_])


def test_weights_that_the_classifier_cannot_take_are_refused_at_once(data):
    with pytest.raises(ValueError, match="Recorder"):
        LabelCleaner(Recorder()).fit(data.X, data.y, np.ones(ROWS))


@pytest.mark.parametrize("estimator", [None, "linear", GaussianNB()])
def test_a_class_of_which_nothing_is_kept_has_no_chance(data, estimator):
    weight = np.where(data.truth == 2, 0.0, 1.0)
    cleaner = LabelCleaner(estimator).fit(data.X, data.truth, weight, trusted=data.trusted)
    chances = cleaner.predict_proba(data.test[0])
    assert chances.shape == (len(data.test[0]), CLASSES)
    assert not (cleaner.predict(data.test[0]) == 2).any()


def test_it_is_tuned_by_grid_search_on_trusted_rows(rarely_real):
    data = Data()
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    grid = {"estimator__C": [1e-6, 0.1]}
    cleaner = LabelCleaner(LogisticRegression(max_iter=2000))
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(cleaner, grid, cv=folds, scoring=TrustedScorer("neg_log_loss"))
        search.fit(data.X, data.y, trusted=data.trusted)
    assert search.best_params_ == {"estimator__C": 0.1}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_the_scorer_looks_at_trusted_rows_only(data):
    model = LogisticRegression(max_iter=2000).fit(data.X, data.truth)
    lies = np.where(data.trusted, data.truth, (data.truth + 1) % CLASSES)
    assert TrustedScorer()(model, data.X, lies, trusted=data.trusted) == 1
    assert model.score(data.X, lies) < 0.5
    with pytest.raises(ValueError, match="fold"):
        TrustedScorer()(model, data.X, lies, trusted=np.zeros(ROWS, bool))


def test_cross_validation_slices_the_mask(data):
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        found = cross_validate(
            LabelCleaner(GaussianNB()),
            data.X,
            data.y,
            cv=folds,
            params={"trusted": data.trusted},
            scoring=TrustedScorer(),
            return_estimator=True,
        )
    assert all(0 < cleaner.trusted_.sum() < TRUSTED for cleaner in found["estimator"])
    assert (found["test_score"] > 0.7).all()


def pipeline(**options):
    return Pipeline([("scale", StandardScaler()), ("clean", LabelCleaner())], **options)


def apart(data):
    X = data.X * 20 + 300  # so that scaling matters
    gold = data.trusted
    return (X[~gold], data.y[~gold]), {"X_val": X[gold], "y_val": data.y[gold]}


def test_a_pipeline_transforms_the_trusted_rows_when_told_to(data):
    rows, gold = apart(data)
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        through = pipeline(transform_input=["X_val"]).fit(*rows, **gold)[-1]
    assert f1(through.is_issue_, data.wrong[~data.trusted]) > 0.85


def test_the_pipeline_trap_is_warned_about(data):
    rows, gold = apart(data)
    with pytest.warns(CleaningWarning, match="transform_input"):
        pipeline().fit(*rows, clean__X_val=gold["X_val"], clean__y_val=gold["y_val"])


@pytest.mark.parametrize("rows", [1, 2, 10, 100])
@pytest.mark.parametrize("kind", ["pixels", "words"])
def test_rows_of_the_same_kind_are_not_taken_for_untransformed(data, kind, rows):
    words = (np.random.default_rng(0).random((ROWS, 300)) < np.geomspace(0.3, 0.003, 300)).astype(float)
    X = data.X if kind == "pixels" else words
    features = Encoder().fit(X).transform(X)
    for seed in range(30):
        some = np.random.default_rng(seed).choice(ROWS, rows, replace=False)
        assert not looks_untransformed(features, features[some])
    assert looks_untransformed(features, features[some] + 3)
    assert looks_untransformed(features, features[some] / 20) == (rows >= 10)


def changed(values, place, value):
    out = np.array(values, copy=True)
    out[place] = value
    return out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda d: {"X_val": d.X[:5]}, "X_val and y_val"),
        (lambda d: {"X_val": d.X[:9], "y_val": np.full(9, 77)}, "77"),
        (lambda d: {"X_val": d.X[:9, :3], "y_val": d.y[:9]}, "3 features"),
        (lambda d: {"X_val": d.X[:9], "y_val": d.y[:8]}, "inconsistent"),
        (lambda d: {"trusted": np.ones(ROWS, bool)}, "all rows"),
        (lambda d: {"trusted": np.zeros(ROWS, bool)}, "no row"),
        (lambda d: {"trusted": d.trusted[:-1]}, "truth value for each of the 500 rows"),
        (lambda d: {"trusted": [3, ROWS]}, "outside"),
        (lambda d: {"groups": np.zeros(3)}, "groups"),
        (lambda d: {"sample_weight": -np.ones(ROWS)}, "sample_weight"),
        (lambda d: {"y": np.full(ROWS, 2)}, "one class"),
        (lambda d: {"y": changed(d.y.astype(object), 7, None)}, "row 7"),
        (lambda d: {"X": changed(d.X, (5, 2), np.inf)}, "'2'.*row 5"),
        (lambda d: {"X": np.ones_like(d.X)}, "constant"),
    ],
)
def test_wrong_data_is_named(data, arguments, said):
    given = {"X": data.X, "y": data.y} | arguments(data)
    with pytest.raises((ValueError, TypeError), match=said):
        LabelCleaner().fit(given.pop("X"), given.pop("y"), **given)


@pytest.mark.parametrize(
    ("parameters", "said"), [({"weights": "heavy"}, "weights"), ({"estimator": "tree"}, "estimator")]
)
def test_wrong_parameters_are_named(data, parameters, said):
    with pytest.raises(ValueError, match=said):
        LabelCleaner(**parameters).fit(data.X, data.y)


def test_the_report_is_written(data, fitted, tmp_path):
    fitted.report(tmp_path / "report.html", data.X.reshape(-1, 8, 8), title="Five <digits>")
    page = (tmp_path / "report.html").read_text()
    assert "Five &lt;digits&gt;" in page
    assert "data:image/png" in page


def test_few_rows_without_trusted_ones_are_left_alone():
    X = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.warns(CleaningWarning, match="too few"):
        cleaner = LabelCleaner().fit(X, np.arange(20) % 2)
    assert not cleaner.is_issue_.any()


def test_when_every_label_is_flagged_all_rows_are_used(data, monkeypatch):
    def hopeless(*arguments, **options):
        found = stand_in.clean(*arguments, **options)
        return replace(found, issue=np.ones(ROWS, bool))

    monkeypatch.setattr("proxbi.cleaning.run.clean", hopeless)
    with pytest.warns(CleaningWarning, match="no two classes|No row is trusted"):
        cleaner = LabelCleaner(GaussianNB()).fit(data.X, data.y)
    assert cleaner.estimator_.class_count_.sum() == ROWS


def test_the_paper_needs_no_scikit_learn():
    code = "import sys, proxbi.cleaning; print('sklearn' in sys.modules, 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2


class OnlyNumbers(ClassifierMixin, BaseEstimator):
    """Takes the labels 0, 1, ... only, as XGBoost does."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        if not np.array_equal(self.classes_, np.arange(len(self.classes_))):
            raise ValueError(f"Invalid classes inferred from unique values of `y`, got {self.classes_}")
        self.model_ = GaussianNB().fit(X, y)
        return self

    def predict(self, X):
        return self.model_.predict(X)

    def predict_proba(self, X):
        return self.model_.predict_proba(X)


@pytest.mark.parametrize("names", [np.array(list("abcde")), np.arange(5) + 3])
def test_a_classifier_that_takes_numbers_only_gets_them(data, names):
    cleaner = LabelCleaner(OnlyNumbers()).fit(data.X, names[data.y], trusted=data.trusted)
    assert cleaner.score(data.test[0], names[data.test[1]]) > 0.7
    assert np.array_equal(names[cleaner.predict_proba(data.X).argmax(axis=1)], cleaner.predict(data.X))


def test_weights_for_a_pipeline_come_with_a_hint(data):
    pipeline = Pipeline([("scale", StandardScaler()), ("model", GaussianNB())])
    with pytest.raises(ValueError, match=r"Pipeline\.fit does not take it.*put LabelCleaner last in it"):
        LabelCleaner(pipeline).fit(data.X, data.y, sample_weight=np.ones(ROWS), trusted=data.trusted)


def test_a_class_without_trusted_rows_is_a_warning(data):
    with pytest.warns(CleaningWarning, match=r"No trusted row has 3 classes \(0, 1, 2\)"):
        LabelCleaner().fit(data.X, data.y, trusted=data.trusted & (data.y > 2))


def test_a_report_of_other_rows_is_refused(data, fitted, tmp_path):
    with pytest.raises(ValueError, match="X must have the 500 rows that were cleaned, got 10"):
        fitted.report(tmp_path / "page.html", data.X[:10])
