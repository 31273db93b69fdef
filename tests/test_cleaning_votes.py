"""Several votes a row: the model of annotators, and what reads and writes votes."""

import json
import pickle
import re
import warnings
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import binom
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataConversionWarning
from tests.stand_in import RARELY_REAL, using
from tests.test_cli_clean import clean

from proxbi.cleaning import CleaningWarning, LabelCleaner
from proxbi.cleaning.files.decisions import Decided, write_decisions
from proxbi.cleaning.files.tables import ADDED, OF_VOTES, Roles, load
from proxbi.cleaning.inputs.ballots import as_they_came, has_votes, labels_by_votes, read_ballots
from proxbi.cleaning.inputs.checks import Words
from proxbi.cleaning.method.votes import (
    Annotators,
    Trust,
    Votes,
    by_votes_alone,
    consensus,
    estimate,
    gain,
    log_likelihood,
    posterior,
)
from proxbi.cleaning.method.voting import Ballot
from proxbi.cleaning.report.evidence import votes_given
from proxbi.cleaning.report.rows import Rows
from proxbi.cleaning.result import Cleaned

pytestmark = pytest.mark.filterwarnings("ignore::proxbi.cleaning.CleaningWarning")
CLASSES = 3


def annotators(confusion):
    confusion = np.asarray(confusion, float)
    return Annotators(confusion, confusion.mean(axis=0))


def spoiled(truth, rate, classes, draw):
    return np.where(draw.random(len(truth)) < rate, (truth + draw.integers(1, classes, len(truth))) % classes, truth)


def simulated(seed, rows=1500, classes=10, number=20):
    """Annotators who are wrong in 2 to 60 %, with 30 to 500 votes each."""
    draw = np.random.default_rng(seed)
    truth, rates = draw.integers(classes, size=rows), draw.uniform(0.02, 0.6, number)
    table = np.full((rows, number), -1)
    for who, rate in enumerate(rates):
        some = draw.choice(rows, draw.integers(30, 501), replace=False)
        table[some, who] = spoiled(truth, rate, classes, draw)[some]
    return table, truth, rates


tables = st.integers(2, 40).flatmap(
    lambda rows: st.lists(
        st.lists(st.integers(-1, CLASSES - 1), min_size=4, max_size=4), min_size=rows, max_size=rows
    ).filter(lambda table: np.max(table) >= 0)
)


# The model.


def test_the_posterior_is_the_product_of_what_everyone_says():
    pi = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.3, 0.7]]])
    table, belief = np.array([[0, 1], [-1, 0], [-1, -1]]), np.array([[0.5, 0.5], [0.25, 0.75], [0.3, 0.7]])
    by_hand = [[0.5 * 0.9 * 0.4, 0.5 * 0.2 * 0.7], [0.25 * 0.6, 0.75 * 0.3], [0.3, 0.7]]
    by_hand = np.array(by_hand) / np.sum(by_hand, axis=1, keepdims=True)
    assert np.allclose(posterior(belief, Votes.of(table), annotators(pi)), by_hand)


@given(tables)
@settings(max_examples=8, deadline=None)
def test_what_is_estimated_are_probabilities_and_the_order_of_annotators_does_not_matter(table):
    table = np.array(table)
    shares, who = by_votes_alone(Votes.of(table), CLASSES)
    assert np.allclose(shares.sum(axis=1), 1)
    assert np.allclose(who.confusion.sum(axis=2), 1)
    assert np.all(who.confusion >= 0)
    others, turned = by_votes_alone(Votes.of(table[:, ::-1]), CLASSES)
    assert np.allclose(shares, others)
    assert np.allclose(who.confusion, turned.confusion[::-1])


@given(tables)
@settings(max_examples=8, deadline=None)
def test_a_row_that_counts_twice_might_be_there_twice(table):
    table = np.array(table)
    shares = np.random.default_rng(0).dirichlet(np.ones(CLASSES), len(table))
    first = Annotators.at_first(table.shape[1], CLASSES)
    once = estimate(Votes.of(table), shares, np.full(len(table), 2.0), first)
    twice = estimate(Votes.of(np.tile(table, (2, 1))), np.tile(shares, (2, 1)), np.ones(2 * len(table)), first)
    assert np.allclose(once.confusion, twice.confusion)


@given(st.lists(st.floats(0.01, 1), min_size=CLASSES, max_size=CLASSES))
def test_the_gain_is_what_another_vote_is_worth(shares):
    shares = np.array(shares) / np.sum(shares)
    average = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.0, 0.3, 0.7]])
    after = sum(np.max([shares[t] * average[t, g] for t in range(CLASSES)]) for g in range(CLASSES))
    assert gain(shares[None], average)[0] == pytest.approx(after - shares.max(), abs=1e-9)
    assert gain(shares[None], average)[0] >= 0
    assert gain(shares[None], np.full((CLASSES, CLASSES), 1 / CLASSES))[0] == 0  # a vote at random is worth nothing


def test_those_who_vote_at_random_are_not_believed():
    draw = np.random.default_rng(0)
    truth = draw.integers(4, size=800)
    random = [draw.integers(4, size=800), np.zeros(800, int), np.full(800, 2)]
    table = np.stack([spoiled(truth, 0.1, 4, draw), spoiled(truth, 0.15, 4, draw), *random], axis=1)
    counts = np.stack([(table == each).sum(axis=1) for each in range(4)], axis=1)
    shares, who = by_votes_alone(Votes.of(table), 4)
    assert np.mean(counts.argmax(axis=1) == truth) < 0.8  # the majority does believe them
    assert np.mean(shares.argmax(axis=1) == truth) > 0.85
    assert np.allclose(who.confusion[3][:, 0], 1, atol=0.15)


def test_annotators_who_are_alike_share_one_table_and_others_do_not():
    draw = np.random.default_rng(1)
    truth = draw.integers(3, size=900)
    shares = np.eye(3)[truth]
    same = np.stack([spoiled(truth, 0.2, 3, draw) for _ in range(4)], axis=1)
    alike = estimate(Votes.of(same), shares, np.ones(900), Annotators.at_first(4, 3))
    counted = [np.mean(same[truth == each] == each, axis=0) for each in range(3)]
    assert np.ptp(np.einsum("jtt->jt", alike.confusion), axis=0).max() < np.ptp(counted, axis=1).max() / 2
    rates = (0.05, 0.2, 0.6)
    others = Votes.of(np.stack([spoiled(truth, r, 3, draw) for r in rates], 1))
    apart = estimate(others, shares, np.ones(900), Annotators.at_first(3, 3))
    assert np.allclose(1 - np.einsum("jtt->j", apart.confusion) / 3, rates, atol=0.04)


def test_few_votes_borrow_from_the_others():
    draw = np.random.default_rng(2)
    truth = draw.integers(3, size=600)
    table = np.stack([spoiled(truth, rate, 3, draw) for rate in (0.05, 0.1, 0.15, 0.3, 0.0)], axis=1)
    table[3:, 4] = -1  # three votes, all of them right
    found = estimate(Votes.of(table), np.eye(3)[truth], np.ones(600), Annotators.at_first(5, 3))
    rates = 1 - np.einsum("jtt->j", found.confusion) / 3
    assert 0.02 < rates[4] < rates[:4].mean()


def test_with_the_truth_known_the_interval_is_that_of_the_hierarchy():
    """Against what is drawn from it: prior, rates, and weights by their binomial likelihoods."""
    table = np.repeat([[0, 0], [1, 0], [1, 1]], [70, 20, 10], axis=0)  # 30 and 10 of 100 votes are wrong
    shares, who = by_votes_alone(Votes.of(table), 2, known=np.zeros(100, int))
    found = consensus(table, shares, who).annotators
    draw = np.random.default_rng(0)
    strength, mean = np.exp(draw.uniform(0, np.log(1000), 400_000)), draw.uniform(0, 1, 400_000)
    rates = draw.beta(strength * mean, strength * (1 - mean), (2, 400_000))
    likelihood = np.exp(np.sum(binom.logpmf([[30], [10]], 100, rates), axis=0))
    for each, drawn in zip(found, rates, strict=True):
        order = np.argsort(drawn)
        below = np.cumsum(likelihood[order]) / likelihood.sum()
        ends = drawn[order][np.searchsorted(below, [0.025, 0.975])]
        assert each.rate == pytest.approx([np.average(drawn, weights=likelihood), *ends], abs=0.01)
        assert each.votes == 100


def crowd(seed, classes):
    """Forty annotators of all kinds, two votes for each of 400 rows."""
    draw = np.random.default_rng(seed)
    truth, rates = draw.integers(classes, size=400), draw.uniform(0, 0.6, 40)
    full = np.stack([spoiled(truth, rate, classes, draw) for rate in rates], axis=1)
    return np.where(np.argsort(np.argsort(draw.random(full.shape), axis=1), axis=1) < 2, full, -1), truth, rates


@pytest.mark.parametrize("classes", [3, 10])
def test_annotators_with_few_votes_are_not_taken_to_be_alike(classes):
    """Expected numbers of wrong votes differ less between annotators than the true ones do: one rate was believed for
    all forty, a tenth of the intervals covered, and good annotators counted no more than others.
    """
    covered, right, alike = [], [], []
    for seed in range(4):
        table, truth, rates = crowd(seed, classes)
        shares, who = by_votes_alone(Votes.of(table), classes)
        low, high = np.array([each.rate[1:] for each in consensus(table, shares, who).annotators]).T
        covered.append((low <= rates) & (rates <= high))
        right.append(np.mean(shares.argmax(axis=1) == truth))
        counts = np.stack([np.sum(table == each, axis=1) for each in range(classes)], axis=1)
        alike.append(np.mean(counts.argmax(axis=1) == truth))
    assert np.mean(covered) > 0.8
    assert np.mean(right) > np.mean(alike) + 0.04


@pytest.mark.parametrize("classes", [2, 10])
def test_intervals_of_annotators_cover(classes):
    covered, blind = [], []
    for seed in range(6):
        table, _, rates = simulated(seed, classes=classes)
        found = consensus(table, *by_votes_alone(Votes.of(table), classes)).annotators
        low, high = np.array([each.rate[1:] for each in found]).T
        covered.append((low <= rates) & (rates <= high))
        blind.append((low.mean() <= rates) & (rates <= high.mean()))
    assert np.mean(covered) >= 0.9
    assert np.mean(blind) < 0.5  # one interval for all does not


def test_trusted_rows_tell_which_annotators_are_right():
    draw = np.random.default_rng(3)
    truth = draw.integers(2, size=400)
    table = np.stack([truth, 1 - truth, 1 - truth], axis=1)  # two of three are always wrong
    known = np.where(np.arange(400) < 20, truth, -1)
    assert np.mean(by_votes_alone(Votes.of(table), 2)[0].argmax(axis=1) == truth) == 0
    assert np.mean(by_votes_alone(Votes.of(table), 2, known)[0].argmax(axis=1) == truth) == 1


def test_rows_that_were_decided_because_of_their_votes_do_not_discredit_everybody():
    """All votes of such rows may be wrong; as a control, who takes them for a fair sample turns all labels round."""
    draw = np.random.default_rng(4)
    truth = draw.integers(2, size=400)
    table = np.where(draw.random((400, 3)) < 0.2, 1 - truth[:, None], truth[:, None])
    table[:30] = 1 - truth[:30, None]
    decided = np.arange(400) < 30
    ballot = Ballot(Votes.of(table), np.where(decided, truth, -1), decided, np.ones(400))
    picked, fair = (
        each.by_votes_alone(2)[0].argmax(axis=1) == truth for each in (ballot, ballot._replace(decided=~decided))
    )
    assert picked[:30].all()
    assert picked[30:].mean() > 0.85
    assert fair[30:].mean() < 0.2


def test_trusted_rows_say_how_far_the_consensus_can_be_believed():
    """Shares that are too sure, the squares of the right ones; and, as a control, nobody who knows."""
    draw = np.random.default_rng(0)
    right = draw.dirichlet(np.full(4, 0.3), 4000)
    truth = np.array([draw.choice(4, p=row) for row in right])
    sure = right**2 / np.sum(right**2, axis=1, keepdims=True)
    known = np.where(np.arange(4000) < 2000, truth, -1)
    trust = Trust.of(sure, known, np.ones(4000))
    assert trust.power == pytest.approx(0.5, abs=0.05)
    found, hits = trust(sure)[2000:], (sure.argmax(axis=1) == truth)[2000:]
    assert found.max(axis=1).mean() == pytest.approx(hits.mean(), abs=0.02)
    assert sure.max(axis=1).mean() > hits.mean() + 0.05
    nobody = Trust.of(sure, np.full(4000, -1), np.ones(4000))
    assert nobody(sure) == pytest.approx(sure)


def test_rows_without_votes_say_nothing():
    table = np.array([[0, -1], [-1, -1]])
    pi = annotators(np.tile([[0.9, 0.1], [0.1, 0.9]], (2, 1, 1)))
    assert np.all(log_likelihood(Votes.of(table), pi)[1] == 0)
    assert Votes.of(table).voted().tolist() == [True, False]


# What people give.


def test_votes_may_be_of_any_kind():
    for y in (
        [[1, None], [2, 1], [None, 2]],
        np.array([[1, np.nan], [2, 1], [np.nan, 2]]),
        pd.DataFrame({0: pd.array([1, 2, None], "Int64"), 1: [None, 1.0, 2.0]}),
    ):
        found = read_ballots(y, Words())
        assert found.classes.tolist() == [1, 2]
        assert found.classes.dtype.kind == "i"
        assert found.table.tolist() == [[0, -1], [1, 0], [-1, 1]]
        assert found.annotators == [0, 1]
    words = read_ballots(pd.DataFrame({"ann": ["b", "a"], "bob": [None, "b"]}), Words())
    assert words.classes.tolist() == ["a", "b"]
    assert words.annotators == ["ann", "bob"]
    assert words.table.tolist() == [[1, -1], [0, 1]]


@pytest.mark.parametrize("y", [[1, 2], [[1], [2]], pd.DataFrame({"y": [1]}), pd.Series([1, 2]), np.zeros((0,))])
def test_one_column_is_no_votes(y):
    assert not has_votes(y)


GOOD = [["a", "b"], ["b", "b"], ["a", "a"]] * 20
BAD = {
    "y mixes kinds of labels": [[1, "a"], ["b", 2]],
    "y has no vote": [[None, None]] * 3,
    "y has one class only, 'a'": [["a", None]] * 60,
    "y has the vote inf": [[1.0, np.inf]] * 3,
    "y has two annotators called 'x'": pd.DataFrame(GOOD, columns=["x", "x"]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_votes_are_refused(message):
    y = BAD[message]
    with pytest.raises(ValueError, match=message):
        LabelCleaner().fit(np.arange(2.0 * len(y)).reshape(-1, 2), y)


def test_sparse_votes_are_refused_with_what_to_give():
    with pytest.raises(ValueError, match="y must not be sparse"):
        LabelCleaner().fit(np.arange(12.0).reshape(6, 2), csr_array(np.eye(6)))


@pytest.mark.parametrize(("row", "why"), [(0, "as many votes for one class as for another"), (60, "no vote")])
def test_a_trusted_row_needs_a_class_with_most_votes(row, why):
    y = [*GOOD, [None, None]]
    with pytest.raises(ValueError, match=f"trusted marks row {row} .*{why}"):
        LabelCleaner().fit(np.arange(2.0 * len(y)).reshape(-1, 2), y, trusted=[row])


# The estimator.


class Data:
    """Digits 0 to 4 by four annotators: rows 0 to 4 have no vote, and the rates are known."""

    rates = MappingProxyType({"ann": 0.1, "bob": 0.25, "cid": 0.4, "dan": 0.7})
    names = np.array(["zero", "one", "two", "three", "four"])

    def __init__(self):
        X, y = load_digits(n_class=5, return_X_y=True)
        draw = np.random.default_rng(0)
        self.X, self.truth = X[:500], self.names[y[:500]]
        votes = {who: self.names[spoiled(y[:500], rate, 5, draw)] for who, rate in self.rates.items()}
        self.Y = pd.DataFrame(votes).astype(object).mask(draw.random((500, 4)) < 0.4)
        self.Y.iloc[:5] = None
        self.test = X[500:], self.names[y[500:]]

    def majority(self):
        return self.Y.mode(axis=1)[0].to_numpy()


@pytest.fixture(scope="module", params=RARELY_REAL)
def data(request):
    with using(request.param):
        found = Data()
        found.real = request.param == "real"
        yield found


@pytest.fixture(scope="module")
def fitted(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CleaningWarning)
        return LabelCleaner().fit(data.X, data.Y)


def test_the_consensus_is_better_than_the_majority(data, fitted):
    right = np.mean(fitted.consensus_label_ == data.truth)
    assert right > np.mean(data.majority() == data.truth) + 0.02
    if data.real:
        assert right > 0.97
        assert (fitted.consensus_label_[:5] == data.truth[:5]).sum() >= 4  # by the features alone
        assert fitted.score(*data.test) > 0.94
        assert fitted.consensus_quality_.mean() == pytest.approx(right, abs=0.03)


def test_every_vote_and_annotator_is_judged(data, fitted):
    assert fitted.consensus_label_.shape == fitted.consensus_quality_.shape == (500,)
    assert np.array_equal(np.isnan(fitted.vote_quality_), data.Y.isna().to_numpy())
    wrong = (data.Y.to_numpy() != data.truth[:, None]) & data.Y.notna().to_numpy()
    right = data.Y.notna().to_numpy() & ~wrong
    assert np.mean(fitted.vote_quality_[right]) > np.mean(fitted.vote_quality_[wrong]) + 0.5
    assert list(fitted.annotator_noise_) == list(data.rates)
    for place, who in enumerate(data.rates):
        found, rate = fitted.annotator_noise_[who], wrong[:, place].sum() / data.Y[who].notna().sum()
        assert found.rate.low <= rate <= found.rate.high or not data.real
        assert found.rate.estimate == pytest.approx(rate, abs=0.03 if data.real else 0.1)  # votes alone say less
        assert found.votes == data.Y[who].notna().sum()
        assert np.allclose(found.confusion.sum(axis=1), 1)


def test_the_rows_that_another_vote_would_help_come_first(data, fitted):
    order = fitted.next_vote_order_
    assert sorted(order) == list(range(500))
    assert np.all(np.diff(fitted.next_vote_gain_[order]) <= 0)
    first, last = fitted.consensus_quality_[order[:50]], fitted.consensus_quality_[order[-50:]]
    assert first.max() < last.min()


def test_it_says_who_and_which_rows_have_no_votes(data, fitted):
    without = int(data.Y.isna().all(axis=1).sum())
    assert any(sentence.startswith(f"{without} rows have no vote") for sentence in fitted.result_.warnings)
    with pytest.warns(CleaningWarning, match="Annotator 'eve' has no votes"):
        found = LabelCleaner().fit(data.X, data.Y.assign(eve=None)).annotator_noise_["eve"]
    assert found.votes == 0
    assert np.isnan(found.rate).all()
    if data.real:
        assert not fitted.is_issue_[:5].any()
        assert (fitted.sample_weight_[:5] == 0).all()


def test_what_else_the_cleaner_gives_is_about_what_the_votes_say(data, fitted):
    frame = fitted.to_frame()
    voted = data.Y.notna().any(axis=1).to_numpy()
    assert np.array_equal(frame["consensus_label"], fitted.consensus_label_)
    assert np.mean(frame["given_label"][voted] == data.majority()[voted]) > 0.8
    assert np.array_equal(frame["given_label"][~voted], fitted.consensus_label_[~voted])
    if data.real:
        assert np.array_equal(frame["suggested_label"], fitted.consensus_label_)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.consensus_quality_, fitted.consensus_quality_)


def test_the_page_can_be_written(data, fitted, tmp_path):
    fitted.report(tmp_path / "page.html", data.X)
    page = (tmp_path / "page.html").read_text()
    assert "zero" in page
    chart = page[page.index('id="by-annotator"') : page.index('id="experts"')]
    assert "share of wrong votes" in chart
    for who, found in fitted.annotator_noise_.items():
        assert f"{who} ({found.votes:,})" in chart
    fitted.report(tmp_path / "shared.html", data.X, show_rows=False)
    assert "Votes: " not in (tmp_path / "shared.html").read_text()
    assert re.findall(r"Votes: \d × “\w+” \((?:ann|bob|cid|dan)", page) or not fitted.is_issue_.any()


def test_who_voted_for_what_is_said_of_each_row():
    table = np.full((5, 12), -1)
    table[0, :3], table[1, :] = [1, 0, 1], 1
    who = [f"<b>{k}</b>" for k in range(12)]
    rows = Rows(Cleaned.unknown(np.zeros(5, int), ""), ["cat", "dog"], np.zeros(5, int), votes=table, annotators=who)
    assert votes_given(rows, np.arange(3)) == [
        ["Votes: 2 × “dog” (<b>0</b>, <b>2</b>), 1 × “cat” (<b>1</b>)."],
        ["Votes: 12 × “dog” (<b>0</b>, <b>1</b>, <b>2</b>, <b>3</b>, <b>4</b> and 7 more)."],
        ["It has no vote."],
    ]
    with pytest.raises(ValueError, match="annotators must name the 12 columns"):
        replace(rows, annotators=who[:3])


def test_one_column_behaves_as_scikit_learn_asks():
    data = Data()
    with using("stand-in"), warnings.catch_warnings():
        warnings.simplefilter("ignore", CleaningWarning)
        votes = LabelCleaner().fit(data.X, data.Y)
        with pytest.warns(DataConversionWarning):
            column = clone(votes).fit(data.X, data.truth[:, None])
        labels = votes.fit(data.X, data.truth)  # the same estimator: nothing is left of the votes
    assert np.array_equal(column.label_quality_, labels.label_quality_)
    assert not hasattr(labels, "consensus_label_")
    assert "consensus_label" not in labels.to_frame()


def test_trusted_rows_groups_weights_and_rows_apart_work_with_votes(data):
    trusted = np.arange(500) >= 450
    Y = data.Y.copy()
    Y.iloc[450:] = data.truth[450:, None]
    who, weight = np.arange(500) % 3, np.where(np.arange(500) < 50, 0.5, 1.0)
    chances = np.full((500, 5), 0.2)
    options = {"groups": who, "sample_weight": weight, "pred_probs": chances}
    found = LabelCleaner().fit(data.X, Y, trusted=trusted, **options)
    assert (found.consensus_label_[450:] == data.truth[450:]).all()
    assert (found.consensus_quality_[450:] == 1).all()
    assert len(found.result_.noise_by_group) == 3
    apart = LabelCleaner().fit(data.X[:450], data.Y[:450], X_val=data.X[450:], y_val=data.truth[450:])
    assert apart.consensus_label_.shape == (450,)
    assert apart.vote_quality_.shape == (450, 4)
    both = LabelCleaner().fit(data.X[:450], data.Y[:450], X_val=data.X[450:], y_val=Y[450:])
    assert np.array_equal(both.consensus_label_, apart.consensus_label_)


def test_few_rows_are_judged_by_votes_alone():
    with pytest.warns(CleaningWarning, match="fewer than 50"):
        found = LabelCleaner().fit(np.arange(24.0).reshape(12, 2), GOOD[:12])
    assert found.consensus_label_.shape == (12,)
    assert set(found.annotator_noise_) == {0, 1}


def test_one_vote_a_row_is_enough(data):
    one = data.Y[["ann"]].assign(bob=None)
    with pytest.warns(CleaningWarning, match="No row has two votes"):
        found = LabelCleaner().fit(data.X, one)
    voted = one["ann"].notna().to_numpy()
    assert np.mean(found.consensus_label_[voted] == data.truth[voted]) > (0.95 if data.real else 0.85)


# The command line.


@pytest.fixture
def folder(tmp_path):
    data = Data()
    frame = pd.DataFrame(data.X.astype(int)).rename(columns="pixel {}".format)
    numbers = {name: number for number, name in enumerate(data.names)}
    votes = data.Y.map(lambda name: numbers.get(name, "")).astype(object)
    pd.concat([frame, votes], axis=1).assign(truth=data.truth).to_csv(tmp_path / "data.csv", index=False)
    kept = data.Y.notna().all(axis=1)
    pd.concat([frame, votes], axis=1)[kept].to_csv(tmp_path / "full.csv", index=False)
    table = np.array([[numbers.get(name, np.nan) for name in row] for row in data.Y.to_numpy()])
    arrays = {who: column for who, column in zip(data.Y, table.T, strict=True)}
    np.savez(tmp_path / "data.npz", X=data.X, y=table, **arrays)
    return tmp_path


WHO = "ann,bob, cid,dan"


def test_the_command_takes_a_column_for_each_annotator(folder):
    with using("stand-in"):
        outputs = ["--out", "out.csv", "--json", "out.json", "--report", "out.html"]
        ran = clean("data.csv", "--label", WHO, "--drop", "truth", *outputs, cwd=folder)
    assert ran.code == 0, ran.err
    assert "annotators" in ran.out
    assert "rows have no vote" in ran.err
    out = pd.read_csv(folder / "out.csv", dtype=str, keep_default_na=False)
    given = pd.read_csv(folder / "data.csv", dtype=str, keep_default_na=False)
    votes = [f"proxbi_quality_of_{who}" for who in Data.rates]
    assert list(out) == [*given, *ADDED, *OF_VOTES, *votes]
    assert out[list(given)].equals(given)
    assert ((out["proxbi_quality_of_cid"] == "") == (given["cid"] == "")).all()
    assert set(out["proxbi_consensus_label"]) <= set("01234")
    assert sorted(out["proxbi_next_vote"].astype(int)) == list(range(1, 501))
    summary = json.loads((folder / "out.json").read_text())
    assert [each["annotator"] for each in summary["annotators"]] == list(Data.rates)
    page = (folder / "out.html").read_text()
    assert "--mode drop" in page
    assert "--mode relabel" not in page  # it is refused where there are several labels a row
    assert all(each["low"] < each["estimate"] < each["high"] for each in summary["annotators"])


def test_votes_are_no_features(folder):
    """A model that sees the votes agrees with them, and they would seem to be right."""
    rows = load(folder / "data.csv", Roles(WHO, drop=["truth"]))
    assert list(rows.X) == [f"pixel {k}" for k in range(64)]
    assert list(rows.unused) == ["truth", *Data.rates]


@pytest.mark.parametrize(("data", "who"), [("data.csv", ["--label", WHO, "--drop", "truth"]), ("data.npz", [])])
def test_decisions_about_votes_are_trusted_and_leave_the_votes_as_they_are(folder, data, who):
    with using("stand-in"):
        assert clean(data, *who, "--json", "first.json", "--suspects", "suspects.csv", cwd=folder).code == 0
        first = json.loads((folder / "first.json").read_text())
        rows, votes = Roles(label=WHO, drop=["truth"]) if who else Roles(), Data().Y.isna().all(axis=1).to_numpy()
        about = load(folder / data, rows).subject(first["digest"])
        silent, kept, against = int(np.flatnonzero(votes)[0]), *np.flatnonzero(~votes)[:2].tolist()
        classes = [about.classes[0], about.given[kept], next(c for c in about.classes if c != about.given[against])]
        some = np.argsort([silent, kept, against])
        decided = Decided(np.array([silent, kept, against])[some], np.array(classes)[some])
        write_decisions(folder / "decisions.csv", about, decided)
        more = ["--decisions", "decisions.csv", "--json", "second.json", "--out", "second.csv", "--report", "r.html"]
        ran = clean(data, *who, *more, cwd=folder)
    assert ran.code == 0, ran.err
    second, out = json.loads((folder / "second.json").read_text()), pd.read_csv(folder / "second.csv")
    assert (first["decided"], second["decided"], second["trusted"]) == (0, 3, 3)
    assert out["proxbi_consensus_label"][decided.rows].map(str).tolist() == decided.labels.astype(str).tolist()
    assert [one["votes"] for one in second["annotators"]] == [one["votes"] for one in first["annotators"]]
    assert '"decision": "keep"' in (folder / "r.html").read_text()


@pytest.mark.slow
@given(tables, st.data())
def test_what_is_decided_about_a_row_changes_the_label_of_no_other(table, data):
    votes = np.array(table)
    decided = np.array(data.draw(st.lists(st.booleans(), min_size=len(votes), max_size=len(votes))))
    given = np.where(votes < 0, None, votes.astype(object))
    # Two rows more, so that all classes are there and there are two of them.
    given, decided = np.concatenate([given, np.tile([[0], [1]], (1, 4))]), np.append(decided, [False, False])
    y = given.copy()
    y[decided] = 1
    came = as_they_came(y, given, decided, decided, Words())
    ballots = read_ballots(given, Words())
    _, labels = labels_by_votes(ballots, None, Words())
    assert np.array_equal(came.ballots.table, ballots.table)
    assert np.all(came.labels[decided] == 1)
    assert np.array_equal(came.labels[~decided], labels[~decided])
    voted = np.any(ballots.table >= 0, axis=1)
    assert np.array_equal(came.before, np.where(decided, np.where(voted, labels, 1), -1))


def test_votes_before_decisions_have_the_shape_of_the_votes():
    with pytest.raises(ValueError, match=r"given must have a vote for each of y.*\(4, 2\), got shape \(4,\)"):
        LabelCleaner().fit(np.eye(4), np.array([[0, 1], [1, 0], [1, 1], [0, 0]]), trusted=[0], given=[0, 1, 1, 0])


def test_arrays_may_have_votes(folder):
    with using("stand-in"):
        one = clean("data.npz", "--json", "one.json", cwd=folder)
        two = clean("data.npz", "--label", "ann,bob,cid,dan", "--out", "two.npz", "--json", "two.json", cwd=folder)
    assert (one.code, two.code) == (0, 0), one.err + two.err
    rates = [
        [each["estimate"] for each in json.loads((folder / name).read_text())["annotators"]]
        for name in ("one.json", "two.json")
    ]
    assert rates[0] == rates[1]
    assert np.load(folder / "two.npz")["proxbi_consensus_quality"].shape == (500,)


def test_trusted_rows_in_a_second_file_have_votes_too(folder):
    with using("stand-in"):
        ran = clean("data.csv", "--label", WHO, "--drop", "truth", "--trusted", "full.csv", cwd=folder)
    assert ran.code == 2
    assert "full.csv marks line" in ran.err or "as many votes" in ran.err


def test_a_column_with_a_comma_in_its_name_is_one(folder):
    frame = pd.read_csv(folder / "data.csv").rename(columns={"truth": "a,b"}).drop(columns=list(Data.rates))
    frame.to_csv(folder / "comma.csv", index=False)
    with using("stand-in"):
        ran = clean("comma.csv", "--label", "a,b", "--json", "comma.json", cwd=folder)
    assert ran.code == 0, ran.err
    assert json.loads((folder / "comma.json").read_text())["annotators"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "ann,nobody"], "no column 'nobody'"),
        (["--label", "ann,ann"], "names 'ann' twice"),
        (["--label", "ann,bob", "--mode", "relabel", "--out", "o.csv"], "proxbi_consensus_label"),
        (["--label", "ann,bob", "--mode", "relabel", "--out", "o.csv"], "columns 'ann', 'bob' of data.csv has several"),
    ],
)
def test_wrong_commands_are_refused_by_name(folder, arguments, message):
    ran = clean("data.csv", *arguments, cwd=folder)
    assert ran.code == 2
    assert message in ran.err
    assert not (folder / "o.csv").exists()


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_rows_without_votes_are_judged_by_what_is_suggested_and_decisions_harm_no_other_row():
    data = Data()
    first = LabelCleaner().fit(data.X, data.Y)
    silent = ~data.Y.notna().any(axis=1).to_numpy()
    assert silent.any()
    assert first.label_quality_[silent] == pytest.approx(first.consensus_quality_[silent])  # of the same class
    suspects = np.flatnonzero(first.is_issue_)
    rest = np.setdiff1d(np.arange(500), suspects)
    Y = data.Y.copy()
    Y.iloc[suspects] = data.truth[suspects, None]
    second = LabelCleaner().fit(data.X, Y, trusted=suspects, given=data.Y)
    before, after = (np.mean((found.consensus_label_ == data.truth)[rest]) for found in (first, second))
    assert after > before - 0.02
    assert second.consensus_quality_[rest].mean() == pytest.approx(after, abs=0.05)


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_features_are_believed_as_far_as_votes_bear_them_out():
    """With features that say nothing the consensus is that of the votes; with good ones it is better."""
    data = Data()
    noise = np.random.default_rng(5).normal(size=(500, 6))
    blind, seeing = (LabelCleaner().fit(X, data.Y) for X in (noise, data.X))
    assert np.mean(blind.consensus_label_ == data.truth) > np.mean(data.majority() == data.truth) - 0.02
    assert np.mean(seeing.consensus_label_ == data.truth) > np.mean(blind.consensus_label_ == data.truth) + 0.05
