"""Decisions: read back as they were made, refused by name where they do not fit, and used without being misled by how
rows were picked.
"""

import csv
import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from tests.stand_in import using
from tests.test_cli_clean import clean
from threadpoolctl import threadpool_limits

from proxbi.cleaning import CleaningWarning, LabelCleaner
from proxbi.cleaning.files.decisions import Decided, Subject, guarded, read_decisions, unguarded, write_decisions
from proxbi.cleaning.method import noise_model, review
from proxbi.cleaning.method.calibration import calibrate
from proxbi.cleaning.method.decision import Decision, Evidence, decide
from proxbi.cleaning.method.noise_model import Calibration, Labels
from proxbi.cleaning.method.table import checked

GIVEN = np.array(["cat", "dog", "cat", "cow"], object)
ABOUT = Subject("data.csv", "ab" * 32, GIVEN, ["a", "b", "c", "d"])
HEAD = "row,id,decision,label,digest\n"
RIGHT = f"1,b,take,cat,{'ab' * 32}\n2,c,keep,cat,{'ab' * 32}\n3,d,skip,cow,{'ab' * 32}\n0,a,other,cow,{'ab' * 32}\n"


# === The file =========================================================================================================


def test_decisions_are_read(tmp_path):
    (tmp_path / "decisions.csv").write_text(HEAD + RIGHT)
    decided = read_decisions(tmp_path / "decisions.csv", ABOUT)
    assert decided.rows.tolist() == [0, 1, 2]
    assert decided.labels.tolist() == ["cow", "cat", "cat"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,id,decision,label\n", "has no column 'digest'"),
        (HEAD + f"1,b,take,cat,{'cd' * 32}\n", "about another file: .* cdcdcdcdcdcd.*, the digest of data.csv is abab"),
        (HEAD + f"4,e,take,cat,{'ab' * 32}\n", r"line 2 of .* has the row '4'; data.csv has rows 0\.\.3"),
        (HEAD + f"-1,e,take,cat,{'ab' * 32}\n", "has the row '-1'"),
        (HEAD + f"1,z,take,cat,{'ab' * 32}\n", "calls row 1 'z'; in data.csv it is 'b'"),
        (HEAD + f"1,b,perhaps,cat,{'ab' * 32}\n", "has the decision 'perhaps'; known are take, keep, other, skip"),
        (
            HEAD + f"1,b,take,horse,{'ab' * 32}\n",
            "has the label 'horse', which no row has; there are 'cat', 'cow', 'dog'",
        ),
        (HEAD + f"1,b,keep,cat,{'ab' * 32}\n", "keeps the label 'cat' of row 1, whose label is 'dog'"),
        (HEAD + RIGHT + f"1,b,take,cat,{'ab' * 32}\n", "line 6 of .* decides about row 1 a second time"),
        (HEAD + "1,b,take\n", "line 2 of .* has too few cells"),
        (HEAD + '1,"b,take', "is not a CSV file that can be read"),
    ],
)
def test_decisions_that_do_not_fit_are_refused(tmp_path, text, message):
    (tmp_path / "decisions.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_decisions(tmp_path / "decisions.csv", ABOUT)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1))
def test_a_guarded_cell_is_no_formula_and_comes_back(text):
    cell = guarded(text)
    assert unguarded(cell) == text
    assert cell[0] not in "=@\t\r\n"
    assert cell[0] not in "+-" or float(cell) == float(text)


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), min_size=2, unique=True))
def test_any_labels_and_ids_come_back(tmp_path_factory, labels):
    path = tmp_path_factory.mktemp("decisions") / "decisions.csv"
    given = np.array(labels, object)
    about = Subject("data.csv", "ab", given, labels)
    decided = Decided(np.arange(len(given)), given[::-1])
    write_decisions(path, about, decided)
    back = read_decisions(path, about)
    assert np.array_equal(back.rows, decided.rows)
    assert back.labels.tolist() == decided.labels.tolist()


# === The command ======================================================================================================


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("decisions")
    X, y = load_digits(return_X_y=True)
    frame = pd.DataFrame(X[:300]).rename(columns="p{}".format)
    frame["y"] = [f"=n{k}" for k in y[:300]]
    frame.loc[7, "y"] = "=n8"
    frame.to_csv(place / "data.csv", index=False)
    frame.iloc[::-1].to_csv(place / "other.csv", index=False)
    with using("stand-in"):
        ran = clean("data.csv", "--label", "y", "--json", "first.json", cwd=place)
    assert ran.code == 0, ran.err
    about = Subject(
        "data.csv", json.loads((place / "first.json").read_text())["digest"], frame["y"].to_numpy(), range(2, 302)
    )
    write_decisions(place / "decisions.csv", about, Decided(np.array([7, 8]), np.array(["=n7", frame["y"][8]], object)))
    return place


def second(folder, *more, data="data.csv"):
    with using("stand-in"):
        return clean(data, "--label", "y", "--decisions", "decisions.csv", "--out", "cleaned.csv", *more, cwd=folder)


def test_decided_rows_are_trusted_in_the_next_round(folder):
    ran = second(folder, "--json", "second.json", "--report", "report.html")
    assert ran.code == 0, ran.err
    summary = json.loads((folder / "second.json").read_text())
    assert (summary["rows"], summary["trusted"], summary["decided"]) == (298, 2, 2)
    lines = list(csv.DictReader((folder / "cleaned.csv").read_text().splitlines()))
    assert lines[7]["y"] == "=n8"
    assert lines[7]["proxbi_suggested_label"] == "=n7"
    assert [lines[7][f"proxbi_{name}"] for name in ("issue", "trusted", "weight")] == ["True", "True", "0.0"]
    assert [lines[8][f"proxbi_{name}"] for name in ("issue", "trusted", "weight")] == ["False", "True", "1.0"]
    page = (folder / "report.html").read_text()
    assert "2 more are trusted, 2 of them decided by hand" in page
    assert page.count("--decisions decisions.csv") >= 2


def test_a_file_of_suspects_has_all_of_them_and_comes_back_filled_in(folder):
    with using("stand-in"):
        ran = clean("data.csv", "--label", "y", "--suspects", "suspects.csv", "--json", "s.json", cwd=folder)
    assert ran.code == 0, ran.err
    suspects = pd.read_csv(folder / "suspects.csv", dtype=str)
    assert len(suspects) == json.loads((folder / "s.json").read_text())["flagged"] > 1
    assert (np.diff(suspects["quality"].astype(float)) >= 0).all()
    assert set(suspects["decision"]) == {"skip"}
    assert set(suspects["given"].str[:2]) == {"'="}  # no spreadsheet runs it
    suspects.loc[0, "decision"] = "take"
    suspects.to_csv(folder / "filled.csv", index=False)
    with using("stand-in"):
        ran = clean("data.csv", "--label", "y", "--decisions", "filled.csv", "--json", "s.json", cwd=folder)
    assert ran.code == 0, ran.err
    assert json.loads((folder / "s.json").read_text())["decided"] == 1


@pytest.mark.parametrize(("mode", "rows", "label"), [("drop", -1, None), ("relabel", 0, "=n7")])
def test_a_label_that_was_decided_against_is_dropped_or_replaced(folder, mode, rows, label):
    assert second(folder, "--json", "again.json").code == 0
    flagged = json.loads((folder / "again.json").read_text())["flagged"]
    assert second(folder, "--mode", mode).code == 0
    found = pd.read_csv(folder / "cleaned.csv")
    assert len(found) == 300 + rows * (flagged + 1)
    if label is not None:
        assert found.loc[7, "y"] == label
        assert found.loc[7, "proxbi_given_label"] == "=n8"


def test_decisions_about_another_file_are_refused_by_name(folder):
    ran = second(folder, data="other.csv")
    assert ran.code == 2
    assert "decisions.csv is a decision about another file" in ran.err
    assert "other.csv" in ran.err


def test_a_page_without_rows(folder):
    with using("stand-in"):
        ran = clean("data.csv", "--label", "y", "--report", "private.html", "--no-rows", cwd=folder)
    assert ran.code == 0, ran.err
    assert "This page was made without the rows themselves." in (folder / "private.html").read_text()


# === The estimator ====================================================================================================


def test_given_labels_must_fit():
    X, y = load_digits(return_X_y=True)
    with using("stand-in"):
        with pytest.raises(ValueError, match="given must come with trusted"):
            LabelCleaner().fit(X[:100], y[:100], given=y[:100])
        with pytest.raises(ValueError, match="given must have a label for each of the 100 rows"):
            LabelCleaner().fit(X[:100], y[:100], trusted=[1], given=y[:99])
        with pytest.warns(CleaningWarning, match="No trusted row has 8 classes"):
            cleaner = LabelCleaner().fit(X[:100], y[:100], trusted=[1, 2], given=np.roll(y[:100], 1))
    assert cleaner.result_.decided.sum() == 2
    assert sorted(cleaner.review_order_) == [0, *range(3, 100)]


def test_decisions_made_on_the_page_of_an_estimator_come_back(tmp_path):
    X, y = load_digits(return_X_y=True)
    frame = pd.DataFrame(X[:100], index=[f"row {k}" for k in range(100)]).rename(columns=str)
    with using("stand-in"), warnings.catch_warnings(action="ignore"):
        first, other = LabelCleaner().fit(frame, y[:100]), LabelCleaner().fit(frame[::-1], y[:100][::-1])
    first.report(tmp_path / "page.html", frame)
    data = json.loads(re.search(r'id="workbench-data">(.*?)</script>', (tmp_path / "page.html").read_text())[1])
    about = Subject("the data", data["digest"], y[:100], list(frame.index))
    write_decisions(tmp_path / "decisions.csv", about, Decided(np.array([3, 4]), np.array([7, y[4]])))
    rows, labels = first.decisions(tmp_path / "decisions.csv")
    assert rows.tolist() == [3, 4]
    assert labels.tolist() == [7, y[4]]
    with pytest.raises(ValueError, match="about another file"):
        other.decisions(tmp_path / "decisions.csv")


def test_labels_before_decisions_are_checked():
    features, labels = np.eye(4), np.array([0, 1, 0, 1])
    trusted = np.array([True, False, False, False])
    with pytest.raises(ValueError, match="before has a label for row 1, which is not trusted"):
        checked(features, labels, 2, trusted, before=np.array([1, 1, -1, -1]))
    with pytest.raises(ValueError, match=r"before must be in -1\.\.1"):
        checked(features, labels, 2, trusted, before=np.array([2, -1, -1, -1]))


# === The method =======================================================================================================


@pytest.fixture
def one_thread():
    """As `clean` does: threads of the BLAS wait for one another."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def drawn(rows, seed, noise=0.3):
    """Two classes, scores that are the logarithms of the true odds, and labels that are wrong at one rate."""
    draw = np.random.default_rng(seed)
    odds = 2.5 * draw.normal(size=rows)
    truth = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    given = np.where(draw.random(rows) < noise, 1 - truth, truth)
    return [np.stack([np.zeros(rows), odds], axis=1)], truth, given


def evidence_of(truth, given, rows, *, told):
    """These rows are decided; with `told` it is known that they were, and what their labels were."""
    trusted = np.isin(np.arange(len(truth)), rows)
    count, groups = np.ones(len(truth)), np.zeros(len(truth), int)
    if told:
        labels = Labels(given, groups, count, np.where(trusted, truth, -1))
    else:
        labels = Labels(np.where(trusted, truth, given), groups, count)
    return Evidence(labels, trusted, 1, 2, Calibration.of([0.0], 2))


def test_decisions_about_suspects_do_not_blur_beliefs_where_their_labels_are_known(one_thread):
    """Suspects are rows where belief and label disagree, and there belief is wrong more often than elsewhere. Whoever
    does not know why they were picked concludes that belief is blurred: the negative control.
    """
    scores, truth, given = drawn(1500, 0)
    own = np.take_along_axis(scores[0], given[:, None], 1) - np.take_along_axis(scores[0], 1 - given[:, None], 1)
    picked = np.argsort(own[:, 0], kind="stable")[:300]
    sharpness = {
        told: decide(scores, evidence_of(truth, given, picked, told=told), np.random.default_rng(0)).sharp.sharpness[0]
        for told in (True, False)
    }
    assert abs(sharpness[True]) < 0.35  # the scores are right as they are
    assert sharpness[False] < sharpness[True] - 0.25


@pytest.mark.parametrize(("vague", "kept"), [(np.log(0.15), False), (-0.2, True)])
def test_decided_rows_cannot_explain_all_wrong_labels_away(one_thread, monkeypatch, vague, kept):
    """One as vague as that explains the labels of all rows too badly. As a control, one that explains them about as
    well as any other stays.
    """
    scores, truth, given = drawn(1500, 0)
    evidence = evidence_of(truth, given, np.arange(20), told=True)

    def fitted(*arguments, offset=None, **options):
        found = calibrate(*arguments, **options)
        return found if offset is None else found._replace(sharpness=np.array([vague]))

    monkeypatch.setattr("proxbi.cleaning.method.decision.calibrate", fitted)
    found = decide(scores, evidence, np.random.default_rng(0))
    assert (found.sharp.sharpness[0] == vague) == kept
    flagged = found.verdict(scores, evidence.labels).quality < 0.5
    assert f1_score(given != truth, flagged) > 0.5


def test_one_decision_against_a_label_proves_noise(one_thread):
    scores, truth, _ = drawn(400, 0)
    given = truth.copy()
    given[3] = 1 - given[3]
    none = decide(scores, evidence_of(truth, given, [], told=True), np.random.default_rng(0))
    one = decide(scores, evidence_of(truth, given, [3], told=True), np.random.default_rng(0))
    assert one.noisy
    assert not none.noisy


def test_a_decided_row_has_the_joint_likelihood_and_no_doubt():
    noise = noise_model.Noise(-1.0, 0.0, noise_model.NEVER, np.zeros(1), np.zeros(2), 1 - np.eye(2))
    belief = np.array([[0.7, 0.3]] * 3)
    labels = Labels(np.zeros(3, int), np.zeros(3, int), np.ones(3), np.array([-1, 0, 1]))
    verdict = noise_model.judge(noise, belief, labels)
    assert verdict.likelihood[0] == pytest.approx(verdict.likelihood[1] + verdict.likelihood[2])
    assert verdict.quality[1:].tolist() == [1, 0]
    offset = noise_model.offset_of(noise, belief, labels)
    posterior = Calibration.of([0.0], 2).softmax([np.log(belief)], offset)
    assert posterior[1, 0] == pytest.approx(verdict.quality[0])
    assert posterior[0, 0] == pytest.approx(0.7)


@given(
    st.lists(st.tuples(st.floats(0.1, 0.9), st.floats(-0.09, 0.09)), min_size=2, max_size=6),
    st.lists(st.floats(0.5, 2), min_size=6, max_size=6),
)
def test_the_first_row_is_the_one_whose_answer_improves_the_score_most(rows, counts):
    """Against all that can happen: theta is one of two numbers, and the answer right or wrong."""
    quality, effect = np.array(rows).T
    repeats = np.array(counts[: len(rows)])
    by_theta = quality + np.outer([1, -1], effect)

    def fall(row):
        found = -(quality**2) @ repeats
        for chances in (by_theta[:, row], 1 - by_theta[:, row]):
            posterior = chances / chances.sum()
            found += chances.mean() * (posterior @ by_theta) ** 2 @ repeats
        return found

    falls = np.array([fall(row) for row in range(len(rows))])
    first = review.most_telling(quality, effect[None], repeats)[0]
    # What is known before it is asked (CERTAIN) and rounding may decide between equals.
    assert falls[first] >= falls.max() * (1 - 1e-4) - 1e-12


def test_the_second_row_teaches_what_the_first_did_not():
    """Two copies of the most telling row, and a row that tells of something else: by itself it comes last."""
    effects = np.array([[0.45, 0.44, 0.0], [0.0, 0.0, 0.35]])
    assert review.most_telling(np.full(3, 0.5), effects, np.ones(3)).tolist() == [0, 2, 1]
    alone = np.sum((effects.T @ effects) ** 2, axis=1)
    assert np.argmin(alone) == 2


def test_the_review_order_has_every_open_row_once_and_no_sure_one_first(one_thread):
    scores, truth, given = drawn(600, 3)
    evidence = evidence_of(truth, given, [5, 6], told=True)
    found: Decision = decide(scores, evidence, np.random.default_rng(0))
    order = review.review_order(found, scores, evidence, np.random.default_rng(0))
    assert sorted(order) == evidence.doubtful.tolist()
    quality = found.verdict(scores, evidence.labels).quality
    doubt = quality * (1 - quality)
    assert doubt[order[:50]].min() > np.median(doubt[evidence.doubtful])
    again = review.review_order(found, scores, evidence, np.random.default_rng(0))
    assert np.array_equal(order, again)
