"""The paper's experiment: its random streams, its protocols, and Table 1 itself where MNIST is at hand."""

import csv
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from tests.mnist import needs_mnist

from proxbi import datasets
from proxbi.experiments import paper, paper_report, protocols, streams
from proxbi.experiments.protocols import CELLS, PROTOCOLS, Cell

ITD_ROWS = [cell for cell in CELLS if cell.kind == "ITD" and cell.p == 0.1]
AID_ROWS = [Cell("BiO-AID", None, 0.1), Cell("BiO-AIDm", None, 0.1)]


@pytest.fixture(scope="module")
def digits():
    return paper.digits_splits()


def runs(cells, seed=0):
    return [paper.Run(cell, seed) for cell in cells]


def without_counts(rows):
    return [{name: value for name, value in row.items() if isinstance(value, float)} for row in rows]


def test_the_permutation_of_the_published_noise():
    generator = streams.twister(streams.NOISE_SEED)
    generator.random_raw(2000)
    assert streams._permutation(generator, 20_000)[:5].tolist() == [3165, 9155, 1552, 14695, 5923]


@pytest.mark.parametrize("count", [16, 17, 31, 7850])
def test_normals_are_normal_and_the_tail_is_drawn_afresh(count):
    block = streams.normals(streams.twister(7), count)
    assert block.dtype == np.float32
    assert np.isfinite(block).all()
    longer = streams.normals(streams.twister(7), 16 * (count // 16 + 1))
    if count % 16:  # only what lies before the last 16 places agrees with a longer block
        assert not np.array_equal(block[-16:], longer[count - 16 : count])
    if count > 1000:
        assert abs(block.mean()) < 0.05
        assert abs(block.std() - 1) < 0.05


def test_published_noise_is_always_wrong_and_as_much_as_asked():
    train = datasets.Labelled(np.zeros((500, 1), np.float32), (np.arange(500) % 10).astype(np.int32))
    for rate in protocols.RATES:
        spoiled = streams.spoiled(train, rate)
        assert np.sum(spoiled.labels != train.labels) == int(rate * 500)
        assert spoiled.labels.min() >= 0
        assert spoiled.labels.max() <= 9


@pytest.mark.slow
def test_cells_together_give_what_each_gives_alone(digits):
    some = runs([CELLS[0], CELLS[5], CELLS[-1], CELLS[20]])
    short = PROTOCOLS["published"]._replace(steps=3)
    together = paper.table(paper.run(some, short, digits))
    alone = paper.table(paper.run(some, short, digits, batch=1))
    assert [row["method"] for row in together] == [row["method"] for row in alone]
    for a, b in zip(without_counts(together), without_counts(alone), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)


class Stop(Exception):
    pass


def test_an_interrupted_run_goes_on_where_it_was(digits, tmp_path):
    some, short = runs([CELLS[0], CELLS[-1]]), PROTOCOLS["paper"]._replace(steps=7)
    straight = paper.run(some, short, digits)

    def stop_late(done, total):
        assert total == 14
        if done == 12:  # in the second group, past the step its last checkpoint was written at
            raise Stop

    with pytest.raises(Stop):
        paper.run(some, short, digits, folder=tmp_path, tick=stop_late)
    seen = []
    resumed = paper.run(some, short, digits, folder=tmp_path, tick=lambda done, total: seen.append(done))
    assert seen == list(range(1, 15))
    assert resumed == straight


@pytest.mark.slow
def test_cells_in_processes_give_what_they_give_together_and_are_not_run_twice(digits, tmp_path):
    some = [paper.Run(CELLS[-1], seed) for seed in (0, 1)]
    short = PROTOCOLS["tuned"]._replace(steps=4)
    together = paper.run(some, short, digits, batch=1)
    apart = paper.run(some, short, digits, folder=tmp_path, engine="joblib", workers=2)
    key = itemgetter("method", "p", "seed", "step")
    for one, other in zip(sorted(together, key=key), sorted(apart, key=key), strict=True):
        assert key(one) == key(other)
        np.testing.assert_allclose(*(list(without_counts([row])[0].values()) for row in (one, other)), rtol=1e-5)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(before) == len(some)
    again = paper.run(some, short, digits, folder=tmp_path, engine="joblib", workers=2)
    assert again == apart
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == before


def test_published_momentum_is_a_doubled_step_and_true_momentum_is_not(digits):
    plain, momentum = Cell("BiO-AID", None, 0.1), Cell("BiO-AIDm", None, 0.1)
    doubled = PROTOCOLS["published"]._replace(
        steps=5, settings=lambda cell, *rest: protocols._published_settings(plain, *rest)._replace(alpha=0.2)
    )

    def last(protocol, cell):
        return paper.run(runs([cell]), protocol._replace(steps=5), digits)[-1]["loss"]

    assert last(PROTOCOLS["published"], momentum) == pytest.approx(last(doubled, plain), rel=1e-6)
    assert last(PROTOCOLS["paper"], momentum) < last(PROTOCOLS["published"], momentum)


def test_the_tuned_protocol_cleans_and_the_published_one_does_not(digits):
    cell = Cell("proximal BiO-AIDm", 5.0, 0.2)
    tuned = paper.run(runs([cell]), PROTOCOLS["tuned"], digits)[-1]
    published = paper.run(runs([cell]), PROTOCOLS["published"], digits)[-1]
    assert tuned["weight_right"] > 0.9
    assert tuned["weight_wrong"] < 0.1
    assert abs(published["weight_right"] - published["weight_wrong"]) < 0.05


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("", "", "", False), 36),
        (("", "", "", True), 7),
        (("BiO-AID,proximal BiO-ITDm:5", "0.1", "", False), 2),
        (("", "", "BiO-AIDm@0.4", False), 1),
    ],
)
def test_choosing_cells(arguments, names):
    assert len(protocols.choose(*arguments)) == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("BiO-XYZ", "", "", False), "^rows: there is no 'BiO-XYZ'"),
        (("", "0.3", "", False), "^p: there is no '0.3'"),
        (("", "", "BiO-AID", False), "^cells: there is no 'BiO-AID'"),
        (("BiO-AIDm", "", "", True), "leave no cell"),
    ],
)
def test_unknown_cells_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        protocols.choose(*arguments)


def test_the_printed_table_is_the_papers():
    file = Path(__file__).parents[2] / "shared" / "paper" / "table1.csv"
    if not file.exists():
        pytest.skip("the paper's table is not beside this checkout")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    printed = {
        (row["method"], float(row["gamma"]) if row["gamma"] else None, float(row["p"])): (
            float(row["accuracy_percent"]),
            float(row["loss"]),
        )
        for row in rows
    }
    assert printed == {tuple(cell): value for cell, value in paper_report.PRINTED.items()}


def check_against_the_paper(cells):
    rows = paper.run(runs(cells, seed=None), PROTOCOLS["published"], paper.mnist_splits(None))
    final = paper.table(rows)
    compared = paper_report.compared(paper_report.table_rows(final, short=True))
    assert len(compared) == len(cells)
    assert [row for row in compared if not row["agrees"]] == []
    assert min(row["smallest_x"] for row in final) > -0.03  # nothing is cleaned
    assert max(row["largest_x"] for row in final) < 0.08


@needs_mnist
@pytest.mark.slow
@pytest.mark.hours  # outside of CI, for its minutes
def test_the_itd_rows_of_table_1_to_the_printed_digit():
    check_against_the_paper(ITD_ROWS)


@needs_mnist
@pytest.mark.slow
@pytest.mark.hours
def test_the_plain_and_momentum_aid_rows_of_table_1_to_the_printed_digit():
    check_against_the_paper(AID_ROWS)


@needs_mnist
@pytest.mark.slow
@pytest.mark.hours
def test_the_whole_table_1_to_the_printed_digit():
    check_against_the_paper(CELLS)
