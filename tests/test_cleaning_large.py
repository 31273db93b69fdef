"""Tables that are not in memory: the same rows are learned from, the same flags and figures come out, and what breaks
on the way costs little.
"""

import csv
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.metrics import f1_score
from tests.test_cli_clean import clean as run_command

import proxbi.cleaning.method.clean
from proxbi import _engine
from proxbi._lock import Lock
from proxbi.cleaning import LabelCleaner
from proxbi.cleaning.files import job as in_one_process
from proxbi.cleaning.files.decisions import Decided, Subject, write_decisions
from proxbi.cleaning.files.job import Outputs
from proxbi.cleaning.files.tables import ADDED, GIVEN, Roles
from proxbi.cleaning.large import adding, parquet
from proxbi.cleaning.large import job as in_many_blocks
from proxbi.cleaning.large.adding import ADDING
from proxbi.cleaning.large.job import JUDGING
from proxbi.cleaning.method import all_rows, drawing, memory, ridge, scoring
from proxbi.cleaning.method import clean as method
from proxbi.cleaning.method.kernel import kernel_map
from proxbi.cleaning.method.table import checked

ROWS, FIT, CLASSES = 1400, 300, 3
ROLES = Roles("label", "gold", group="who", id="id")
# Few rows are many.
clean_file = partial(in_one_process.clean_file, learn_from=FIT)
clean_files = partial(in_many_blocks.clean_files, learn_from=FIT)
CUTS = (0, 500, 500, 800, 1100, ROWS)  # one of the files has no rows


def table(seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Three clouds, text, gaps and dates; a fifth of the labels that are not trusted are wrong."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(CLASSES, size=rows)
    frame = pd.DataFrame(draw.normal(size=(rows, 4)) + 3 * np.eye(CLASSES, 4)[truth], columns=list("abcd"))
    frame.loc[draw.random(rows) < 0.1, "a"] = np.nan
    frame["kind"] = np.where(draw.random(rows) < 0.7, np.array(["x", "y", "z"])[truth], "w")
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 300, rows), unit="D")
    wrong = draw.random(rows) < 0.2
    label = np.where(wrong, (truth + 1) % CLASSES, truth)
    frame["label"] = np.array(["cat", "dog", "owl"])[label]
    frame["gold"] = ~wrong & (draw.random(rows) < 0.2)
    frame["who"] = np.where(draw.random(rows) < 0.5, "ann", "bob")
    frame["id"] = [f"r{i}" for i in range(rows)]
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table as one file and as five."""
    made, whole = tmp_path_factory.mktemp("tables"), table()
    (made / "data").mkdir()
    whole.to_parquet(made / "whole.parquet", index=False)
    for number, (first, last) in enumerate(pairwise(CUTS)):
        whole.iloc[first:last].to_parquet(made / "data" / f"part-{number}.parquet", index=False)
    return made


@pytest.fixture(autouse=True, scope="module")
def _what_is_learned_is_kept() -> Iterator[None]:
    """What the same sample teaches is learned once: it takes seconds each time. Batches are small."""
    known: dict[bytes, Any] = {}

    def learn(sample: Any, weights: str, seed: int, progress: Any = None, add: Any = None) -> Any:
        if add is not None:
            return method.learn(sample, weights, seed, progress, add)
        key = pickle.dumps((tuple(sample), weights, seed))
        known[key] = known.get(key) or method.learn(sample, weights, seed, progress)
        return known[key]

    method = SimpleNamespace(learn=proxbi.cleaning.method.clean.learn)
    with (
        patch.object(parquet, "BATCH", 256),
        patch("proxbi.cleaning.method.clean.learn", learn),
        patch("proxbi.cleaning.large.learn.learn", learn),
    ):
        yield


def joined(out: Path) -> pd.DataFrame:
    """The rows of all files of a folder."""
    return pd.concat([pd.read_parquet(path) for path in sorted(out.glob("*.parquet"))], ignore_index=True)


def require_same(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """The same columns, flags and labels; numbers to the rounding of single precision."""
    assert list(ours.columns) == list(theirs.columns)
    numbers = ["proxbi_weight", "proxbi_quality"]
    assert_allclose(ours[numbers], theirs[numbers], atol=1e-4)
    pd.testing.assert_frame_equal(ours.drop(columns=numbers), theirs.drop(columns=numbers))


def require_nearly_the_same(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """All but a thousandth of the flags, and qualities to 0.01. A fit to all rows is summed in another order where the
    rows come in blocks of another size, and the calibration's optimiser may then stop elsewhere.
    """
    assert list(ours.columns) == list(theirs.columns)
    assert np.mean(ours["proxbi_issue"] != theirs["proxbi_issue"]) <= 0.001
    assert_allclose(ours["proxbi_quality"], theirs["proxbi_quality"], atol=0.01)
    pd.testing.assert_frame_equal(ours[theirs.columns.drop(list(ADDED))], theirs.drop(columns=list(ADDED)))


def require_same_figures(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in ("rows", "trusted", "flagged", "chosen", "helped", "headline", "warnings"):
        assert ours[name] == theirs[name], name
    for name in ("noise_by_class", "noise_by_group"):
        one, other = (pd.DataFrame(each[name]) for each in (ours, theirs))
        pd.testing.assert_frame_equal(one, other, rtol=1e-4)
    assert_allclose(*(list(each["noise_rate"].values()) for each in (ours, theirs)), rtol=1e-4)


@pytest.fixture(scope="module")
def in_memory(folder: Path) -> dict[str, Any]:
    """What one process with all rows says."""
    return clean_file(folder / "whole.parquet", ROLES, Outputs(folder / "cleaned.parquet")).summary


@pytest.fixture(scope="module")
def in_blocks(folder: Path, in_memory: dict[str, Any]) -> dict[str, Any]:
    return clean_files(folder / "data" / "*.parquet", ROLES, folder / "out").summary


# --- which rows are learned from --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 400), max_size=5), st.integers(0, 2**31), st.integers(0, 2**32 - 1))
def test_the_same_rows_are_drawn_however_the_table_is_cut(cuts: list[int], seed: int, kind: int) -> None:
    trusted = np.random.default_rng(kind).random(400) < 0.3
    ends = [0, *sorted(cuts), 400]
    parts = [drawing.drawn(seed, 50, trusted[a:b], first=a) for a, b in pairwise(ends)]
    found = drawing.merged(seed, 50, parts[::-1])
    assert found.rows.tolist() == drawing.learned_from(seed, 50, trusted).tolist()
    assert len(found.noisy) == 50
    assert len(found.gold) == 25
    assert trusted[found.gold].all()
    assert not trusted[found.noisy].any()


def test_every_row_is_drawn_as_often_as_any_other() -> None:
    """Each of 200 rows in half of 2,000 samples: 1,000 times, with a standard deviation of 22."""
    none = np.zeros(200, bool)
    counts = np.bincount(np.concatenate([drawing.learned_from(seed, 100, none) for seed in range(2000)]))
    assert np.abs(counts - 1000).max() < 100
    assert abs(np.corrcoef(counts, np.arange(200))[0, 1]) < 0.25


def test_rows_without_weight_are_not_drawn_and_a_small_table_is_taken_whole() -> None:
    counted = np.arange(1000) % 2 == 0
    assert (drawing.learned_from(0, 100, np.zeros(1000, bool), counted) % 2 == 0).all()
    assert drawing.learned_from(0, 100, np.zeros(100, bool), counted[:100]).tolist() == list(range(100))


# --- the same as in one process ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_files_are_those_of_one_process(folder: Path, in_blocks: dict[str, Any]) -> None:
    assert sorted(path.name for path in (folder / "out").iterdir()) == [f"part-{k}.parquet" for k in range(5)]
    require_same(joined(folder / "out"), pd.read_parquet(folder / "cleaned.parquet"))
    for number in range(5):
        before, after = (pq.read_table(folder / where / f"part-{number}.parquet") for where in ("data", "out"))
        assert after.column_names == [*before.column_names, *ADDED]
        assert after.select(before.column_names).equals(before)


def test_the_figures_are_those_of_one_process(in_memory: dict[str, Any], in_blocks: dict[str, Any]) -> None:
    require_same_figures(in_blocks, in_memory)
    assert in_blocks["settings"]["rows fitted"] == FIT  # a sample
    assert 0.1 < in_blocks["noise_rate"]["estimate"] < 0.25
    json.dumps(in_blocks, allow_nan=False)


def test_what_is_finished_is_not_done_again(folder: Path, in_blocks: dict[str, Any]) -> None:
    out = folder / "out"
    (out / "part-2.parquet").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = clean_files(folder / "data", ROLES, out).summary
    after = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"part-2.parquet"}
    require_same_figures(again, in_blocks)
    require_same(joined(out), pd.read_parquet(folder / "cleaned.parquet"))


class Stopped(Exception):
    """A run that ends before its time."""


def test_a_large_file_is_done_by_row_groups(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """A run that broke off in the middle of a file goes on there; in the end it is one file, and nothing beside it."""
    data, out, seen = tmp_path / "data.parquet", tmp_path / "out", list[str]()
    pq.write_table(pq.read_table(folder / "whole.parquet"), data, row_group_size=200)

    def stop(stage: str, share: float) -> None:
        seen.append(stage)
        if seen.count(JUDGING) == 3:
            raise Stopped

    with patch.object(parquet, "PIECE", 450):
        parts = parquet.find_parts(data)
        assert [(part.first, part.rows, part.groups) for part in parts] == [
            (0, 400, range(0, 2)),
            (400, 400, range(2, 4)),
            (800, 400, range(4, 6)),
            (1200, 200, range(6, 7)),
        ]
        assert "row 407" in parts[1].where(7)
        with pytest.raises(Stopped):
            clean_files(data, ROLES, out, progress=stop)
        pieces = out / ".data.parquet.pieces"
        before = {path.name: path.stat().st_mtime_ns for path in pieces.iterdir()}
        assert set(before) == {"0.parquet", "1.parquet", "2.parquet"}
        with patch("proxbi.cleaning.large.job.shutil.rmtree"):  # or the pieces would be gone
            found = clean_files(data, ROLES, out).summary
        after = {path.name: path.stat().st_mtime_ns for path in pieces.iterdir()}
        assert after.items() > before.items()
        again = clean_files(data, ROLES, out).summary
    assert [path.name for path in out.iterdir()] == ["data.parquet"]
    require_same(joined(out), pd.read_parquet(folder / "cleaned.parquet"))
    for summary in (found, again):
        require_same_figures(summary, in_blocks)


@pytest.mark.slow
def test_more_rows_may_be_learned_from(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """All of them, in both ways; files of a run that learned from fewer are written again."""
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    one = clean_file(folder / "whole.parquet", ROLES, Outputs(tmp_path / "one.parquet"), learn_from=ROWS).summary
    found = clean_files(folder / "data", ROLES, out, learn_from=ROWS).summary
    assert found["settings"]["rows fitted"] == one["settings"]["rows fitted"] == ROWS
    require_same_figures(found, one)
    require_same(joined(out), pd.read_parquet(tmp_path / "one.parquet"))


@pytest.mark.parametrize("learn_from", [1.5, True, "300"])
def test_the_number_of_rows_to_learn_from_is_a_number(learn_from: Any, folder: Path, tmp_path: Path) -> None:
    X, y = np.arange(10.0)[:, None], np.arange(10) % 2
    frame = pd.DataFrame(X)
    attempts = [
        lambda: method.clean(X, y, 2, learn_from=learn_from),
        lambda: LabelCleaner(learn_from=learn_from).fit(frame, y),
        lambda: clean_file(folder / "whole.parquet", ROLES, Outputs(tmp_path / "o.csv"), learn_from=learn_from),
        lambda: clean_files(folder / "data", ROLES, tmp_path / "out", learn_from=learn_from),
    ]
    for attempt in attempts:
        with pytest.raises(TypeError, match="learn_from must be an integer"):
            attempt()


def test_learning_without_room_is_refused_before_rows_are_taken(folder: Path, tmp_path: Path) -> None:
    whole = pd.read_parquet(folder / "whole.parquet")
    X, y = whole[["b", "c", "d"]], whole["label"]

    def stages(stage: str, share: float) -> None:
        assert stage == "looking at the labels"

    attempts = [
        lambda: clean_file(folder / "whole.parquet", ROLES, Outputs(tmp_path / "o.csv")),
        lambda: clean_files(folder / "data", ROLES, tmp_path / "out", progress=stages),
        lambda: LabelCleaner(learn_from=FIT).fit(X, y),
        lambda: LabelCleaner(learn_from=FIT).fit(frame_of(folder)[["b", "c", "d"]], y),
    ]
    said = r"learning from 300 rows takes about 0\.0 GiB of memory, and 0\.0 GiB are free: about 7. would fit\."
    for attempt in attempts:
        with patch.object(memory, "free_memory", lambda device, sharing: 1e6), pytest.raises(MemoryError, match=said):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_another_request_does_everything_again(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """Negative control: with another mode, no file is taken for finished, and the modes are those of one process."""
    for mode in ("drop", "relabel"):
        clean_file(folder / "whole.parquet", ROLES, Outputs(tmp_path / "one.parquet", mode=mode))
        clean_files(folder / "data", ROLES, tmp_path / "out", mode=mode)
        require_same(joined(tmp_path / "out"), pd.read_parquet(tmp_path / "one.parquet"))
    assert GIVEN in joined(tmp_path / "out")


# --- the regression fitted to all rows --------------------------------------------------------------------------------


def spread_out(seed: int = 0, rows: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels of which a fifth are wrong, which are trusted, and which are wrong: six classes, each of them in
    eight places, so that many rows teach more than few."""
    draw = np.random.default_rng(seed)
    centres = 2.5 * draw.normal(size=(48, 5))
    place = draw.integers(48, size=rows)
    wrong = draw.random(rows) < 0.2
    X = draw.normal(size=(rows, 5)) + centres[place]
    labels = (place + np.where(wrong, 1 + draw.integers(5, size=rows), 0)) % 6
    return X.astype(np.float32), labels, ~wrong & (draw.random(rows) < 0.05), wrong


def test_sums_of_blocks_are_the_fit_to_all_rows() -> None:
    """Its scores are those of `ridge.fit`, with every row left out, however the rows are cut and weighted."""
    X, labels, trusted, _ = spread_out(rows=700)
    rows = checked(X, labels, 6, trusted, sample_weight=np.arange(700) % 3)
    phi = kernel_map(X[:64], 4.0)
    scorer = all_rows.Precise(scoring.Scorer.of(phi, jnp.zeros((64, 6), jnp.float32), []))
    quality = np.random.default_rng(1).random(700)
    weights = np.where(trusted, 1, quality)
    judge = scoring.Judge(scorer, None, np.arange(700), scoring.Found(weights, quality, labels))
    cuts = [all_rows.add_up(judge, rows.take(slice(a, b)), a) for a, b in pairwise((0, 0, 100, 101, 700))]
    fit = all_rows.LeaveOneOut.of(judge, all_rows.Sums.total(cuts), phi.whitening, jnp.float32(0.5))
    totals = rows.repeats * weights
    direct = ridge.fit(phi(jnp.asarray(X)), jnp.asarray(labels), jnp.asarray(totals, jnp.float32), jnp.float32(0.5), 6)
    assert_allclose(fit.scores(rows, totals), direct.scores, atol=2e-4)
    assert sum(cut.rows for cut in cuts) == np.sum(totals > 0)


@pytest.mark.slow
def test_a_fit_to_all_rows_finds_more() -> None:
    X, labels, trusted, wrong = spread_out()
    found = [method.clean(X, labels, 6, trusted=trusted, learn_from=FIT, fit_all=fit_all) for fit_all in (False, True)]
    sample, every = (f1_score(wrong, one.issue) for one in found)
    assert every > sample + 0.03
    assert found[1].settings["rows fitted"] == len(X)
    assert abs(found[1].noise_rate.estimate - wrong[~trusted].mean()) < 0.03


@pytest.fixture(scope="module")
def by_all(folder: Path) -> dict[str, Any]:
    """What one process with all rows says of a fit to all."""
    return clean_file(folder / "whole.parquet", ROLES, Outputs(folder / "by-all.parquet"), fit_all=True).summary


@pytest.mark.slow
def test_the_files_of_a_fit_to_all_rows_are_those_of_one_process(
    folder: Path, in_memory: dict[str, Any], by_all: dict[str, Any], tmp_path: Path
) -> None:
    """Also after a run that broke off while it added up rows: what is whole of its sums is not done again."""
    out, seen = tmp_path / "out", list[str]()

    def stop(stage: str, share: float) -> None:
        seen.append(stage)
        if seen.count(ADDING) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        clean_files(folder / "data", ROLES, out, fit_all=True, progress=stop)
    kept = sorted((out / ".sums").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(kept) == 3
    flip(kept[0])
    with patch.object(adding, "add_block", wraps=adding.add_block) as added:
        found = clean_files(folder / "data", ROLES, out, fit_all=True)
    # The piece that was damaged, and those after the third.
    assert [call.args[1].first for call in added.call_args_list] == [0, 256, 800, 1056, 1100, 1356]
    require_nearly_the_same(joined(out), pd.read_parquet(folder / "by-all.parquet"))
    assert_allclose(*(list(each["noise_rate"].values()) for each in (found.summary, by_all)), rtol=0.01)
    assert by_all["settings"]["rows fitted"] == ROWS
    assert not np.array_equal(joined(out)["proxbi_quality"], pd.read_parquet(folder / "cleaned.parquet"))
    assert sorted(path.name for path in out.iterdir()) == [f"part-{k}.parquet" for k in range(5)]


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_what_a_fit_to_all_rows_cannot_have_is_refused(folder: Path, tmp_path: Path) -> None:
    X, labels, trusted, _ = spread_out(rows=60)
    with pytest.raises(ValueError, match='fit_all must be False with weights="free"'):
        LabelCleaner(weights="free", fit_all=True).fit(X, labels, trusted=trusted)
    with pytest.raises(ValueError, match='fit_all must be False with weights="free"'):
        clean_files(folder / "data", ROLES, tmp_path / "out", weights="free", fit_all=True)
    with pytest.raises(TypeError, match="fit_all must be True or False, got 'yes'"):
        LabelCleaner(fit_all="yes").fit(X, labels)
    with pytest.raises(ValueError, match="fit_all must be False with several votes per row"):
        LabelCleaner(fit_all=True).fit(X, np.stack([labels, labels], axis=1))


# --- decisions --------------------------------------------------------------------------------------------------------


def decide(path: Path, digest: str, rows: list[int], labels: list[str]) -> Path:
    """A file of decisions about rows of the whole table."""
    whole = table()
    about = Subject("data", digest, whole["label"].to_numpy(), whole["id"].tolist())
    write_decisions(path, about, Decided(np.array(rows), np.array(labels, object)))
    return path


@pytest.mark.slow
def test_decided_rows_are_trusted_and_those_of_one_process(
    folder: Path, in_memory: dict[str, Any], in_blocks: dict[str, Any], tmp_path: Path
) -> None:
    """Rows of three files, some of them learned from: kept, changed to what was suggested, and changed to another."""
    before = pd.read_parquet(folder / "cleaned.parquet")
    suspects = np.flatnonzero(before["proxbi_issue"])[[0, 1, 40, 80, -1]].tolist()
    plain = np.flatnonzero(~before["proxbi_issue"] & ~before["proxbi_trusted"])[[5, 300]].tolist()
    rows = [*suspects, *plain]
    given = before["label"].to_numpy()
    labels = [given[rows[0]], *before["proxbi_suggested_label"][suspects[1:]], "owl", "cat"]
    order = np.argsort(rows)
    rows, labels = [rows[i] for i in order], [labels[i] for i in order]
    one = clean_file(
        folder / "whole.parquet",
        ROLES,
        Outputs(tmp_path / "one.parquet"),
        decisions=decide(tmp_path / "one.csv", in_memory["digest"], rows, labels),
    ).summary
    decisions = decide(tmp_path / "d.csv", in_blocks["digest"], rows, labels)
    page = tmp_path / "r.html"
    found = clean_files(folder / "data", ROLES, tmp_path / "out", decisions=decisions, to_report=page)
    assert found.decided is not None
    assert found.decided.rows.tolist() == rows
    assert found.summary["decided"] == len(rows)
    require_same_figures(found.summary, one)
    after = joined(tmp_path / "out")
    require_same(after, pd.read_parquet(tmp_path / "one.parquet"))
    ours = after.iloc[rows]
    assert ours["proxbi_trusted"].all()
    assert ours["proxbi_suggested_label"].tolist() == labels
    assert (ours["proxbi_issue"] == (ours["label"] != labels)).all()
    assert found.summary["digest"] == in_blocks["digest"]  # of the data: the next decisions are about the same
    kept = workbench(page)["decided"]  # the page saves them again
    assert [(each["row"], each["id"], each["label"]) for each in kept] == [
        (row, f"r{row}", label) for row, label in zip(rows, labels, strict=True)
    ]
    assert [each["decision"] == "keep" for each in kept] == (ours["label"] == labels).tolist()


def workbench(page: Path) -> Any:
    """What the script of a page starts from."""
    return json.loads(re.search(r'id="workbench-data"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)[1])


def test_decisions_about_rows_that_were_not_drawn_are_kept(
    folder: Path, in_blocks: dict[str, Any], tmp_path: Path
) -> None:
    """Where more rows are trusted than are learned from."""
    rows, page = list(range(0, 1400, 7)), tmp_path / "r.html"  # 200, of which 150 at most are drawn
    labels = table()["label"].to_numpy()[rows].tolist()
    decisions = decide(tmp_path / "d.csv", in_blocks["digest"], rows, labels)
    found = clean_files(folder / "data", ROLES, tmp_path / "out", decisions=decisions, to_report=page)
    assert [each["row"] for each in workbench(page)["decided"]] == rows
    assert found.inputs.before is not None
    assert 0 < np.sum(found.inputs.before >= 0) < len(rows)


def test_files_that_change_during_the_run_are_noticed(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """What was learned, and part of the output, is about the old ones."""
    shutil.copytree(folder / "data", tmp_path / "data")

    def change(stage: str, share: float) -> None:
        if stage == JUDGING:
            os.utime(tmp_path / "data" / "part-0.parquet", (1, 1))

    with pytest.raises(OSError, match="data changed while it was read"):
        clean_files(tmp_path / "data", ROLES, tmp_path / "out", progress=change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: [*line[:4], "f" * 64], "line 2 of .* is a decision about another file"),
        (lambda line: ["1400", *line[1:]], r"has the row '1400'; .* has rows 0\.\.1399"),
        (lambda line: [line[0], "r8", *line[2:]], "calls row 7 'r8'; in .* it is 'r7'"),
        (lambda line: [*line[:3], "cow", line[4]], "has the label 'cow', which no row has"),
        (lambda line: [*line[:2], "keep", "nothing", line[4]], "has the label 'nothing'"),
    ],
)
def test_decisions_about_other_rows_are_refused(
    folder: Path, in_blocks: dict[str, Any], tmp_path: Path, change: Any, said: str
) -> None:
    path = decide(tmp_path / "d.csv", in_blocks["digest"], [7], ["cat"])
    head, line = list(csv.reader(path.read_text().splitlines()))
    with path.open("w") as file:
        csv.writer(file).writerows([head, change(line)])
    with pytest.raises(ValueError, match=said):
        clean_files(folder / "data", ROLES, tmp_path / "out", decisions=path)
    assert not (tmp_path / "out").exists()


def test_the_page_calls_rows_by_their_places_in_the_table(folder: Path, tmp_path: Path) -> None:
    """So that decisions made there are about these rows: without ids, what is shown of a row is its place as well."""
    page = tmp_path / "r.html"
    clean_files(folder / "data", ROLES._replace(id=None, drop=["id"]), tmp_path / "out", to_report=page)
    text, labels = page.read_text(), joined(tmp_path / "out")["label"].to_numpy()
    names = workbench(page)["labels"]
    marks = re.findall(r'data-row="(\d+)" data-called="(\d+)" data-given="(\d+)"', text)
    assert max(int(row) for row, _, _ in marks) > FIT
    for row, called, label in marks:
        assert row == called
        assert labels[int(row)] == names[int(label)]


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_trusted_rows_may_be_in_a_file_of_their_own(folder: Path, tmp_path: Path) -> None:
    whole = table()
    whole[~whole["gold"]].to_parquet(tmp_path / "data.parquet", index=False)
    whole[whole["gold"]].drop(columns="id").to_parquet(tmp_path / "gold.parquet", index=False)
    roles = Roles("label", trusted_file=tmp_path / "gold.parquet", group="who", id="id", drop=["gold"])
    one = clean_file(tmp_path / "data.parquet", roles, Outputs(tmp_path / "one.parquet")).summary
    two = clean_files(tmp_path / "data.parquet", roles, tmp_path / "out").summary
    require_same_figures(two, one)
    require_same(joined(tmp_path / "out"), pd.read_parquet(tmp_path / "one.parquet"))


def test_the_command_takes_a_pattern(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    options = ["--label", "label", "--trusted-col", "gold", "--group", "who", "--id", "id", "--learn-from", FIT]
    to = ["--out", tmp_path / "out", "--json", tmp_path / "s.json", "--report", tmp_path / "r.html"]
    ran = run_command("data/*.parquet", *options, *to, cwd=folder)
    assert ran.code == 0, ran.err
    assert in_blocks["headline"] in ran.out
    require_same_figures(json.loads((tmp_path / "s.json").read_text()), in_blocks)
    require_same(joined(tmp_path / "out"), pd.read_parquet(folder / "cleaned.parquet"))
    page, suspects = (tmp_path / "r.html").read_text(), joined(tmp_path / "out").query("proxbi_issue")
    assert in_blocks["headline"] in page
    assert f"Flagged rows: {len(suspects):,}. Of the 450 rows that were learned from" in page
    assert "shares with intervals are of all rows" in page
    called = set(re.findall(r'data-called="(r\d+)"', page))
    assert called
    assert called <= set(joined(folder / "out")["id"])


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(folder: Path, *options: object) -> str:
    ran = run_command(*options, cwd=folder)
    assert ran.code == 2, ran.err
    return ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none/*.parquet", "--out", "o"], "none/*.parquet matches no Parquet file"),
        (["data/*.parquet"], "--out is required"),
        (["data/*.parquet", "--out", "data"], "is the folder of the input"),
        (["data", "--out", "data/cleaned"], "data/cleaned is inside of data"),
        (["data/*.parquet", "--out", "whole.parquet"], "whole.parquet is a file"),
        (["data/*.parquet", "--out", "o", "--pred-probs", "p.csv"], "--pred-probs needs all rows in memory"),
        (["data/*.parquet", "--out", "o", "--decisions", "d.csv"], "d.csv does not exist"),
        (["data/*.parquet", "--out", "o", "--report", "data"], "data is a directory"),
        (
            ["data/*.parquet", "--out", "o", "--scheduler", "tcp://x:1"],
            "--scheduler and --workers are for --engine dask",
        ),
        (["data/*.parquet", "--out", "o", "--group", "whom"], "has no column 'whom'"),
        (["data/*.parquet", "--out", "o", "--learn-from", "99"], "learn_from must be at least 100, got 99."),
        (["whole.parquet", "--out", "o.csv", "--learn-from", "-1"], "learn_from must be at least 100, got -1."),
        (["whole.parquet", "--out", "o", "--engine", "blocks", "--label", "a,b"], "votes are read together"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(folder: Path, arguments: list[str], said: str) -> None:
    label = [] if "--label" in arguments else ["--label", "label"]
    assert said in " ".join(refused(folder, *arguments, *label).split())
    assert not (folder / "o").exists()


def spoiled(folder: Path, change: Any) -> Path:
    """Two files, the second one changed."""
    whole = table(rows=200)
    whole.assign(id=[f"s{i}" for i in range(200)]).to_parquet(folder / "0.parquet", index=False)
    change(whole).to_parquet(folder / "1.parquet", index=False)
    return folder / "*.parquet"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns="b"), "has no column 'b', which"),
        (lambda t: t.astype({"b": "float32"}), "Column 'b' is double in"),
        (lambda t: t.assign(label=t["label"].where(t.index != 7)), "no label in row 7 (the first is 0) of"),
        (lambda t: t.assign(gold=t["gold"].astype(str).where(t.index != 9, "perhaps")), "is bool in"),
        (lambda t: t.assign(proxbi_issue=False), "proxbi_issue"),
        (lambda t: t.assign(b=t["b"].where(t.index != 150, np.inf)), "'b' of the features is infinite in row 150"),
        (lambda t: t.assign(id=t["id"].where(t.index != 9, "r8")), "has the id r8 twice, again in row 9"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"1\.parquet") as error:
        clean_files(spoiled(tmp_path, change), Roles("label", "gold", id="id", group="who"), tmp_path / "out")
    assert said in str(error.value)


def test_columns_may_be_in_another_order(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """Each file keeps its own."""
    shutil.copytree(folder / "data", tmp_path / "data")
    turned = pd.read_parquet(tmp_path / "data" / "part-2.parquet").iloc[:, ::-1]
    turned.to_parquet(tmp_path / "data" / "part-2.parquet", index=False)
    require_same_figures(clean_files(tmp_path / "data", ROLES, tmp_path / "out").summary, in_blocks)
    require_same(joined(tmp_path / "out")[[*table(), *ADDED]], pd.read_parquet(folder / "cleaned.parquet"))
    assert pq.read_schema(tmp_path / "out" / "part-2.parquet").names == [*turned, *ADDED]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    given = spoiled(tmp_path, lambda t: t)
    twice = pq.read_table(tmp_path / "1.parquet")
    pq.write_table(twice.append_column("a", twice["a"]), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet has two columns called 'a'"):
        clean_files(given, Roles("label"), tmp_path / "out")


def test_a_file_that_is_damaged_inside_is_named(tmp_path: Path) -> None:
    """Its footer is whole, so that it is seen when rows are read; with checksums, any bit."""
    given, path = spoiled(tmp_path, lambda t: t), tmp_path / "1.parquet"
    for damaged in (range(200, 1200), range(900, 901)):
        pq.write_table(pq.read_table(tmp_path / "0.parquet"), path, write_page_checksum=True, compression="none")
        content = bytearray(path.read_bytes())
        for place in damaged:
            content[place] ^= 4
        path.write_bytes(bytes(content))
        with pytest.raises(ValueError, match=r"1\.parquet is not a Parquet file that can be read"):
            clean_files(given, Roles("label", drop=["id"]), tmp_path / "out")


def test_folders_that_end_like_files_are_searched(tmp_path: Path) -> None:
    """As Spark calls its tables."""
    (tmp_path / "t.parquet").mkdir()
    table(rows=60).to_parquet(tmp_path / "t.parquet" / "part-0.parquet")
    assert [part.name for part in parquet.find_parts(tmp_path)] == ["t.parquet/part-0.parquet"]


def test_two_runs_do_not_share_a_folder(folder: Path, tmp_path: Path) -> None:
    """Their files would be a mixture."""
    (tmp_path / "out").mkdir()
    held = Lock(tmp_path / "out")
    with pytest.raises(OSError, match=f"in use by process {os.getpid()} on"):
        clean_files(folder / "data", ROLES, tmp_path / "out")
    held.release()


def test_what_a_killed_run_left_is_removed(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """Half a file would be read with the others by whoever reads hidden ones too; drafts of other commands stay."""
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    (out / "sub").mkdir()
    dead = [out / f".proxbi-1-2-{'0a' * 16}.tmp.parquet", out / "sub" / f".proxbi-1-3-{'f3' * 16}.tmp.parquet"]
    other = out / ".proxbi-1-4-.tmp.parquet"
    for draft in (*dead, other):
        draft.touch()
    clean_files(folder / "data", ROLES, out)
    assert not any(draft.exists() for draft in dead)
    assert other.exists()


def test_files_of_an_earlier_run_are_pointed_out(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """Else they would be read with the others."""
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    (out / "part-0.parquet").rename(out / "part-9.parquet")
    found = clean_files(folder / "data", ROLES, out).summary
    assert found["warnings"][:-1] == in_blocks["warnings"]
    assert "1 more Parquet file(s), such as" in found["warnings"][-1]
    assert "part-9.parquet" in found["warnings"][-1]


def test_a_damaged_piece_is_written_again(folder: Path, in_blocks: dict[str, Any], tmp_path: Path) -> None:
    """One flipped bit in what waits to be put together."""
    data, out = tmp_path / "data.parquet", tmp_path / "out"
    pq.write_table(pq.read_table(folder / "whole.parquet"), data, row_group_size=700)

    def flip(stage: str, share: float) -> None:
        piece = out / ".data.parquet.pieces" / "0.parquet"
        if stage == JUDGING and share == 1:
            content = bytearray(piece.read_bytes())
            content[3000] ^= 1
            piece.write_bytes(bytes(content))

    with patch.object(parquet, "PIECE", 700):
        with pytest.raises(OSError, match=r"0\.parquet is damaged, and was removed .*give the same command again"):
            clean_files(data, ROLES, out, progress=flip)
        clean_files(data, ROLES, out)
    require_same(joined(out), pd.read_parquet(folder / "cleaned.parquet"))


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("label\n1\n")
    with pytest.raises(ValueError, match=r"a\.parquet is not a Parquet file that can be read"):
        clean_files(tmp_path, Roles("label"), tmp_path / "out")
    (tmp_path / "a.csv").write_text("label\n1\n")
    with pytest.raises(ValueError, match=r"a\.csv is no Parquet file"):
        clean_files(tmp_path / "*.csv", Roles("label"), tmp_path / "out")


def test_a_damaged_output_is_written_again(folder: Path, in_blocks: dict[str, Any]) -> None:
    damaged = folder / "out" / "part-0.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    clean_files(folder / "data", ROLES, folder / "out")
    require_same(joined(folder / "out"), pd.read_parquet(folder / "cleaned.parquet"))


def test_without_dask_it_is_said_what_to_install(folder: Path) -> None:
    with patch.object(_engine, "find_spec", lambda name: None), pytest.raises(ImportError, match=r"proxbi\[dask\]"):
        clean_files(folder / "data", ROLES, folder / "o", engine="dask")


# --- on Dask ----------------------------------------------------------------------------------------------------------


def frame_of(folder: Path) -> Any:
    pytest.importorskip("dask", reason="dask is not installed: pip install 'proxbi[dask]'")
    import dask.dataframe as dd

    return dd.from_pandas(pd.read_parquet(folder / "whole.parquet"), npartitions=4, sort=False)


FEATURES = ["a", "b", "c", "d", "kind", "day"]


def test_an_estimator_takes_a_dask_data_frame(folder: Path, in_memory: dict[str, Any]) -> None:
    frame, whole = frame_of(folder), pd.read_parquet(folder / "whole.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (
            LabelCleaner(learn_from=FIT).fit(t[FEATURES], t["label"], trusted=t["gold"], groups=t["who"])
            for t in (whole, frame)
        )
    assert np.array_equal(one.is_issue_, two.is_issue_)
    assert np.array_equal(one.suggested_label_, two.suggested_label_)
    assert_allclose(one.label_quality_, two.label_quality_, atol=1e-4)
    assert_allclose(one.noise_rate_, two.noise_rate_, rtol=1e-4)
    assert two.score(whole[FEATURES], whole["label"]) > 0.75
    assert two.to_frame().index.equals(frame.index.compute())
    assert two.feature_names_in_.tolist() == FEATURES
    with pytest.raises(TypeError, match=r"X must be in memory here.*take X\.map_partitions\(cleaner\.predict\)"):
        two.predict(frame[FEATURES])


@pytest.mark.slow
def test_a_dask_data_frame_is_fitted_as_a_whole(folder: Path) -> None:
    """With trusted rows given apart, of which some are not learned from."""
    frame, whole = frame_of(folder), pd.read_parquet(folder / "whole.parquet")
    apart = table(seed=1, rows=900).query("gold")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (
            LabelCleaner(learn_from=FIT, fit_all=True).fit(
                t[FEATURES], t["label"], X_val=apart[FEATURES], y_val=apart["label"]
            )
            for t in (whole, frame)
        )
    assert len(apart) > FIT / 2 - 20
    assert one.result_.settings["rows fitted"] == two.result_.settings["rows fitted"] == ROWS + len(apart)
    assert np.mean(one.is_issue_ != two.is_issue_) <= 0.001
    assert_allclose(one.label_quality_, two.label_quality_, atol=0.01)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sample_weight": np.ones(ROWS)}, "sample_weight must not be given with a Dask data frame"),
        ({"y": np.zeros((ROWS, 2))}, "one label for each row of a Dask data frame"),
        ({"y": np.zeros(5)}, "X has 1400 rows and y has 5"),
    ],
)
def test_what_a_dask_data_frame_cannot_have_is_refused(folder: Path, more: dict[str, Any], said: str) -> None:
    frame = frame_of(folder)
    with pytest.raises(ValueError, match=said):
        LabelCleaner().fit(frame[FEATURES], more.pop("y", frame["label"]), **more)


def test_rows_apart_must_fit_a_dask_data_frame(folder: Path) -> None:
    frame, whole = frame_of(folder), pd.read_parquet(folder / "whole.parquet")
    with pytest.raises(ValueError, match="missing:\n- b"):
        LabelCleaner().fit(frame[["a", "b"]], frame["label"], X_val=whole[["a"]], y_val=whole["label"])
    with pytest.raises(ValueError, match=r"X has no rows\."):
        LabelCleaner().fit(frame[["a"]], frame["label"], X_val=whole[["a"]][:0], y_val=whole["label"][:0])
    with pytest.raises(ValueError, match="X must be a Dask data frame, got a series"):
        LabelCleaner().fit(frame["a"], frame["label"])


def test_a_partition_that_changes_during_the_run_is_noticed(folder: Path) -> None:
    """Of a source that grows, rows would have the labels of others."""
    features, seen = frame_of(folder)[FEATURES], list[int]()

    def growing(part: pd.DataFrame) -> pd.DataFrame:
        seen.append(len(part))
        return pd.concat([part, part[: len(seen) // 5]])  # from the second pass over four partitions on

    changing = features.map_partitions(growing, meta=features)
    with pytest.raises(ValueError, match=r"the partition of X with row \d+ had 350 rows when fit began, and has 35\d"):
        LabelCleaner(learn_from=FIT).fit(changing, pd.read_parquet(folder / "whole.parquet")["label"])


def test_partitions_without_rows_are_no_rows(folder: Path) -> None:
    frame = frame_of(folder)
    none = frame[frame["a"] > 1e9]
    with pytest.raises(ValueError, match=r"X has no rows\."):
        LabelCleaner().fit(none[FEATURES], none["label"])


@pytest.mark.slow
@pytest.mark.parametrize("deadly", [JUDGING, pytest.param(ADDING, marks=pytest.mark.hours)])
def test_a_worker_that_dies_costs_its_block_and_not_the_run(folder: Path, tmp_path: Path, deadly: str) -> None:
    """Two worker processes, of which one is killed after the first file: the same files; and nothing is left to do."""
    fit_all = deadly == ADDING
    distributed = pytest.importorskip("distributed", reason="distributed is not installed: pip install 'proxbi[dask]'")
    clean_file(folder / "whole.parquet", ROLES, Outputs(tmp_path / "one.parquet"), fit_all=fit_all)
    killed: list[int] = []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:

        def kill(stage: str, share: float) -> None:
            if stage == deadly and not killed:
                killed.append(next(iter(cluster.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        on = {"engine": "dask", "scheduler": cluster.scheduler_address, "fit_all": fit_all}
        found = clean_files(folder / "data", ROLES, tmp_path / "out", progress=kill, **on).summary
        compare = require_nearly_the_same if fit_all else require_same
        compare(joined(tmp_path / "out"), pd.read_parquet(tmp_path / "one.parquet"))
        before = [path.stat().st_mtime_ns for path in sorted((tmp_path / "out").glob("*.parquet"))]
        again = clean_files(folder / "data", ROLES, tmp_path / "out", **on).summary
        assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "out").glob("*.parquet"))] == before
    assert killed
    require_same_figures(again, found)


CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@pytest.mark.slow
def test_a_scheduler_that_is_lost_and_a_piece_that_kills_workers_are_named(tmp_path: Path) -> None:
    """In place of tracebacks of Dask."""
    pytest.importorskip("distributed", reason="distributed is not installed: pip install 'proxbi[dask]'")
    import dask

    def deadly(held: int, block: str) -> None:
        os._exit(held)

    def endless(held: int, block: str) -> None:
        time.sleep(held)

    impatient = {"distributed.comm.timeouts.connect": "2s", "distributed.scheduler.allowed-failures": 0}
    dies = pytest.raises(OSError, match="part-3 cannot be worked on: one worker after another died")
    with dask.config.set(impatient), _engine.started("dask", workers=1) as run, dies:
        list(run(deadly, 1, ["part-3"]))
    (tmp_path / "cluster.py").write_text(CLUSTER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    cluster = subprocess.Popen([sys.executable, tmp_path / "cluster.py"], **pipes)
    with cluster, dask.config.set(impatient):
        assert cluster.stdout is not None
        with _engine.started("dask", cluster.stdout.readline().strip()) as run:
            results = run(endless, 60, ["part-1"])
            threading.Timer(2, cluster.kill).start()
            with pytest.raises(OSError, match="the Dask scheduler was lost: start it again"):
                list(results)


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: pip install 'proxbi[dask]'")
    with patch.object(_engine, "SECONDS", 1), pytest.raises(OSError, match=r"tcp://127\.0\.0\.1:9 does not answer"):
        clean_files(folder / "data", ROLES, tmp_path / "o", engine="dask", scheduler="tcp://127.0.0.1:9")
