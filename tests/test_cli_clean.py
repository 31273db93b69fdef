"""`proxbi clean`, as a person would run it."""

import csv
import errno
import io
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import zipfile
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from tests import stand_in
from tests.stand_in import RARELY_REAL, using
from tests.test_demo import PROXBI, proxbi

from proxbi import cli
from proxbi.cleaning.files.tables import ADDED, GIVEN
from proxbi.cli import main
from proxbi.distributed import RankLostError

ROWS, TRUSTED, WRONG = 700, 150, 110


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def clean(*arguments, cwd):
    """`proxbi clean` in this process."""
    out, err = io.StringIO(), io.StringIO()
    command = ["proxbi", "clean", *map(str, arguments)]
    given = patch.object(sys, "argv", command)
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), given, pytest.raises(SystemExit) as ended:
        main()
    return Ran(ended.value.code or 0, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module", params=RARELY_REAL)
def method(request):
    with using(request.param):
        yield request.param


@pytest.fixture(scope="module")
def table():
    """Digits as a table; a fifth of the labels that are not trusted are wrong, most of them those of bob."""
    X, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    wrong = np.isin(np.arange(ROWS), draw.choice(ROWS - TRUSTED, WRONG, replace=False))
    given = np.where(wrong, (y[:ROWS] + draw.integers(1, 10, ROWS)) % 10, y[:ROWS])
    frame = pd.DataFrame(X[:ROWS].astype(int)).rename(columns="pixel {}".format)
    frame.insert(0, "key", [f"{i:04d}" for i in range(ROWS)])
    frame["who"] = np.where(wrong & (draw.random(ROWS) < 0.9), "bob", draw.choice(["ann", "cid"], ROWS))
    frame["digit"] = [f"<b>{label}</b>" for label in given]
    frame["gold"] = np.where(np.arange(ROWS) >= ROWS - TRUSTED, "yes", "")
    frame["price"] = "1.50"
    return frame, wrong


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    place = tmp_path_factory.mktemp("clean")
    frame, _ = table
    gold = frame["gold"] == "yes"
    frame.to_csv(place / "data.csv", index=False)
    frame[~gold].to_csv(place / "rest.csv", index=False)
    frame[gold].to_parquet(place / "gold.parquet")
    pixels = frame.filter(like="pixel").to_numpy().reshape(-1, 8, 8).astype(np.uint8)
    labels = frame["digit"].to_numpy("U")
    arrays = {"X": pixels[~gold], "y": labels[~gold], "X_val": pixels[gold], "y_val": labels[gold], "more": [1, 2]}
    np.savez(place / "data.npz", **arrays)
    return place


COMMON = ["--label", "digit", "--id", "key", "--group", "who", "--drop", "price"]


@pytest.fixture(scope="module")
def ran(method, folder):
    names = ["--out", "cleaned.csv", "--report", "report.html", "--json", "summary.json"]
    return clean("data.csv", "--trusted-col", "gold", *COMMON, *names, cwd=folder)


def f1(flagged, wrong):
    return 2 * np.sum(flagged & wrong) / (np.sum(flagged) + np.sum(wrong))


def test_it_says_what_it_found(ran):
    assert ran.code == 0, ran.err
    assert ran.err == ""
    for words in ("550 and 150 trusted", "flagged", "interval", "held-out accuracy after", "cleaned.csv, report.html"):
        assert words in ran.out
    assert re.match(r"\d+ of 550 labels are probably wrong \(\d+ %, \d+-\d+ %\)\.\n", ran.out)
    assert "did not help" not in ran.out


def test_every_column_and_row_is_kept_in_order(ran, folder, table):
    frame, wrong = table
    found = pd.read_csv(folder / "cleaned.csv", dtype="str", keep_default_na=False)
    assert list(found) == [*frame, *ADDED]
    assert np.array_equal(found[list(frame)].to_numpy(), frame.astype(str).to_numpy())
    flagged = (found["proxbi_issue"] == "True").to_numpy()
    assert f1(flagged, wrong) > 0.9
    weight = found["proxbi_weight"].astype(float)
    assert weight.between(0, 1).all()
    assert ((found["proxbi_trusted"] == "True") == (frame["gold"] == "yes")).all()
    assert (found["proxbi_suggested_label"][~flagged] == found["digit"][~flagged]).all()
    assert (found["proxbi_suggested_label"][flagged] != found["digit"][flagged]).mean() > 0.95


def test_the_summary_can_be_read_by_machines(ran, folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["rows"], summary["trusted"]) == (ROWS - TRUSTED, TRUSTED)
    rate = summary["noise_rate"]
    assert rate["low"] < WRONG / (ROWS - TRUSTED) < rate["high"]
    assert summary["command"].startswith("proxbi clean data.csv --trusted-col gold")
    assert summary["headline"].startswith(f"{summary['flagged']} of 550 labels are probably wrong")
    assert "for a model" in summary["for_a_model"]
    by_group = {row["group"]: row["estimate"] for row in summary["noise_by_group"]}
    assert by_group["bob"] > 0.8 > 0.2 > by_group["ann"]


def test_the_report_has_the_labels_as_text(ran, folder):
    page = (folder / "report.html").read_text()
    assert "&lt;b&gt;3&lt;/b&gt;" in page
    assert "<b>3</b>" not in page


def test_the_same_seed_gives_the_same_file(ran, folder):
    again = clean("data.csv", "--trusted-col", "gold", *COMMON, "--out", "again.csv", cwd=folder)
    assert again.code == 0
    assert (folder / "again.csv").read_bytes() == (folder / "cleaned.csv").read_bytes()


def test_a_second_file_of_trusted_rows_and_parquet_out(method, folder, table):
    frame, wrong = table
    rest = frame["gold"] != "yes"
    drop = ["--drop", "price,gold"]
    arguments = [*COMMON, *drop, "--trusted", "gold.parquet", "--mode", "relabel", "--out", "relabelled.parquet"]
    ran = clean("rest.csv", *arguments, cwd=folder)
    assert ran.code == 0, ran.err
    found = pd.read_parquet(folder / "relabelled.parquet")
    assert list(found) == [*frame, *ADDED, GIVEN]
    assert (found[GIVEN] == frame["digit"][rest]).all()
    assert (found["digit"] == found["proxbi_suggested_label"]).all()
    assert f1((found["digit"] != found[GIVEN]).to_numpy(), wrong[rest]) > 0.9


def test_the_weights_asked_for_are_those_computed(folder):
    asked = []

    def record(*arguments, weights, **options):
        asked.append(weights)
        return stand_in.clean(*arguments, weights=weights, **options)

    with patch("proxbi.cleaning.run.clean", record):
        for option in ([], ["--weights", "free"]):
            ran = clean("data.csv", "--trusted-col", "gold", *COMMON, *option, "--out", "weighed.csv", cwd=folder)
            assert ran.code == 0, ran.err
    assert asked == ["auto", "free"]


def test_probabilities_of_another_model_reach_the_cleaner(folder, table):
    got = []

    def record(*arguments, pred_probs, **options):
        got.append(pred_probs)
        return stand_in.clean(*arguments, **options)

    classes = sorted(set(table[0]["digit"]))
    chances = pd.DataFrame(np.full((ROWS, 10), 0.1), columns=classes[::-1])
    chances[classes[0]] += 0.9
    chances /= 1.9
    chances.to_csv(folder / "probs.csv", index=False)
    options = ["--trusted-col", "gold", "--pred-probs", "probs.csv"]
    with patch("proxbi.cleaning.run.clean", record):
        ran = clean("data.csv", *COMMON, *options, cwd=folder)
    assert ran.code == 0, ran.err
    np.testing.assert_allclose(got[0], np.r_[1.0, np.full(9, 0.1)][None] / 1.9 + np.zeros((ROWS, 1)))


def test_npz_in_and_out_without_the_flagged_rows(method, folder, table):
    wrong = table[1][: ROWS - TRUSTED]
    ran = clean("data.npz", "--mode", "drop", "--out", "out.npz", "--fail-if-noise-above", "0.05", cwd=folder)
    assert ran.code == 1
    assert "more than 5.0 %" in ran.err
    with np.load(folder / "data.npz") as given, np.load(folder / "out.npz") as found:
        kept = len(found["y"])
        assert set(found.files) == {*given.files, *ADDED}
        assert abs(kept - np.sum(~wrong)) < 30
        assert found["X"].shape == (kept, 8, 8)
        assert np.array_equal(found["X_val"], given["X_val"])


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


SMALL = "id,a,label,gold\n" + "".join(f"{i},{i * 7 % 5},{'xy'[i % 2]},{int(i < 4)}\n" for i in range(20))
LABEL = ["--label", "label"]
GOLD = [*LABEL, "--trusted-col", "gold"]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (SMALL, ["--label", "target"], "no column 'target'; it has 'id', 'a', 'label', 'gold'"),
        (SMALL, [], "label must name the column of data.csv"),
        (SMALL, [*LABEL, "--group", "who"], "'who'"),
        (SMALL, [*LABEL, "--drop", "b,c"], "'b'"),
        (SMALL, [*LABEL, "--drop", "id,a,gold"], "no columns left"),
        (SMALL, [*LABEL, "--trusted", "none.csv"], "none.csv does not exist"),
        (SMALL, [*GOLD, "--trusted", "data.csv"], "--trusted-col and --trusted"),
        (SMALL, [*LABEL, "--trusted", "data.csv"], "cannot be its own file of trusted rows"),
        (SMALL, [*GOLD, "--out", "data.csv"], "data.csv is named twice"),
        (SMALL, [*GOLD, "--out", "out.csv", "--json", "out.csv"], "out.csv is named twice"),
        (SMALL, [*GOLD, "--out", "out.xlsx"], "unknown extension"),
        (SMALL, [*GOLD, "--out", "/dev/null/folder/out.csv"], "cannot be written"),
        (SMALL, [*GOLD, "--report", "."], "is a directory"),
        (SMALL.replace("y,", "x,"), GOLD, "one class only, 'x'"),
        (SMALL.replace(",0\n", ",1\n"), GOLD, "all rows"),
        (SMALL.replace(",1\n", ",0\n"), GOLD, "no row"),
        (SMALL.replace("0,0,x,1", "0,0,x,x"), GOLD, "one of yes, y, true, t, 1, 1.0 for trusted rows; no, n, false"),
        (SMALL.replace("0,0,x,1", "0,0,x,maybe"), GOLD, "'maybe' in line 2 (as a spreadsheet counts)"),
        (SMALL.replace("5,0,y", "5,inf,y"), GOLD, "'a' of the features is infinite in line 7 (as"),
        (SMALL.replace("5,0,y", "5,0,"), GOLD, "no label in line 7 (as"),
        (SMALL.replace("\n5,0,y", "\n\n5,0,"), GOLD, "no label in line 8 (as"),
        (SMALL.replace("5,0,y", "4,0,y"), [*GOLD, "--id", "id"], "the id 4 twice, again in line 7"),
        ("a,label\n" + "1,x\n1,y\n" * 5, LABEL, "constant"),
        ("a,label\n" + "".join(f"{i},{i / 7}\n" for i in range(9)), LABEL, "not class labels"),
        ("a,label,a\n1,x,2\n2,y,3\n", LABEL, "two columns called 'a'"),
        ("a,label\n1,x,3\n2,y,4\n", LABEL, "more cells"),
        ("a,label\n1,x\n2,y\n3,x,4\n", LABEL, "line 4"),
        ("a,label\n", LABEL, "no rows"),
        ("", LABEL, "empty"),
        ("a,label\n1,café\n2,y\n".encode("latin-1"), LABEL, "not text in UTF-8"),
        ("a,label,proxbi_weight\n1,x,1\n2,y,1\n", LABEL, "earlier run"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, content, arguments, said):
    write(tmp_path / "data.csv", content)
    arguments = arguments if "--out" in arguments else [*arguments, "--out", "out.csv"]
    ran = clean("data.csv", *arguments, cwd=tmp_path)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("no-such.csv", None, "does not exist"),
        ("no-such-folder/of-ten-gigabytes.parquet", None, "does not exist"),
        ("data.xlsx", "a,b", "unknown extension"),
        ("data.parquet", "a,label\n1,x\n", "not a Parquet file"),
        ("data.npz", "a,label\n1,x\n", "not an npz file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, said):
    if content is not None:
        write(tmp_path / name, content)
    ran = clean(tmp_path / name, *LABEL, cwd=tmp_path)
    assert ran.code == 2
    assert said in ran.err
    assert str(tmp_path / name) in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": np.eye(4)}, "no array 'y'"),
        ({"X": np.eye(4), "y": np.arange(3)}, "one value for each of the 4 rows"),
        ({"X": np.full((4, 2), "a"), "y": [0, 1, 0, 1]}, "rows of numbers"),
        ({"X": np.eye(4), "y": [0, 1, 0, 1], "X_val": np.eye(4)}, "no array 'y_val'"),
        ({"X": np.eye(4), "y": [0, 1, 0, 1], "X_val": np.eye(3), "y_val": [0, 1, 0]}, "shape (3, 3)"),
        ({"X": np.eye(4), "y": [0, 1, 0, 1], "X_val": np.eye(4), "y_val": [0, 1, 0, 5]}, "the label 5"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, said):
    np.savez(tmp_path / "data.npz", **arrays)
    ran = clean(tmp_path / "data.npz", cwd=tmp_path)
    assert ran.code == 2
    assert said in ran.err


def test_pickled_arrays_are_not_opened(tmp_path):
    np.savez(tmp_path / "data.npz", X=np.eye(4), y=np.array(["a", 1, None, 2], object))
    ran = clean(tmp_path / "data.npz", cwd=tmp_path)
    assert ran.code == 2
    assert "plain arrays" in ran.err


def test_a_broken_archive_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY")
    ran = clean(tmp_path / "data.npz", cwd=tmp_path)
    assert ran.code == 2
    assert "not an npz file" in ran.err


def test_wrong_options_are_named(tmp_path):
    for arguments in (["--weights", "both"], ["--mode", "burn"], ["--fail-if-noise-above", "2"], ["--seed", "-1"]):
        ran = clean("data.csv", *arguments, cwd=tmp_path)
        assert ran.code == 2
        assert arguments[0] in ran.err


def test_nothing_is_written_when_the_work_fails(tmp_path, monkeypatch):
    write(tmp_path / "data.csv", SMALL)
    (tmp_path / "out.csv").write_text("old")

    def fail(*_args, **_options):
        raise OSError("no space left")

    monkeypatch.setattr("proxbi.cleaning.report.publish.write_report", fail)
    few = [*LABEL, "--out", "out.csv", "--report", "report.html"]  # too few to judge: no work but the writing
    ran = clean("data.csv", *few, cwd=tmp_path)
    assert ran.code == 2
    assert "no space left" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"data.csv", "out.csv"}
    assert (tmp_path / "out.csv").read_text() == "old"


# === Ctrl-C ===========================================================================================================

STAGES = [
    "proxbi.cleaning.files.formats._read",
    "proxbi.cleaning.files.csv_file.Csv._read",
    "proxbi.cleaning.inputs.features.Encoder.fit",
    "proxbi.cleaning.files.job.clean_inputs",
    "proxbi.cleaning.files.tables.write",
    "proxbi.cleaning.report.publish.write_report",
]
WITH_FILES = [*LABEL, "--out", "out.csv", "--report", "report.html", "--json", "summary.json"]


BY_SIGNALS = [
    (signal.SIGINT, 130, "proxbi: interrupted.\n"),
    (signal.SIGTERM, 75, "proxbi: ended by SIGTERM: give the same command again; what it kept is not done again.\n"),
]


def interrupted(tmp_path, code=130, said="proxbi: interrupted.\n"):
    """`proxbi clean`, which must end as interrupted."""
    write(tmp_path / "data.csv", SMALL)
    (tmp_path / "out.csv").write_text("old")
    ran = clean("data.csv", *WITH_FILES, cwd=tmp_path)
    assert ran.code == code
    assert ran.err == said
    assert {path.name for path in tmp_path.iterdir()} == {"data.csv", "out.csv"}
    assert (tmp_path / "out.csv").read_text() == "old"


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_ends_with_130_and_writes_nothing_wherever_it_comes(tmp_path, stage):
    with patch(stage, side_effect=KeyboardInterrupt):
        interrupted(tmp_path)


@pytest.mark.parametrize(("number", "code", "said"), BY_SIGNALS)
@pytest.mark.parametrize("stage", [STAGES[1], STAGES[2]])
def test_a_signal_that_a_library_turns_into_another_error_is_still_one(tmp_path, stage, number, code, said):
    """As pandas does while it reads."""

    def turn(*_arguments, **_options):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        raise ValueError("Calling read(nbytes) on source failed")

    with patch(stage, turn):
        interrupted(tmp_path, code, said)


def test_ctrl_c_that_a_library_drops_is_still_ctrl_c(tmp_path):
    from proxbi.cleaning.run import clean_inputs

    def drop(*arguments, **options):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return clean_inputs(*arguments, **options)

    with patch("proxbi.cleaning.files.job.clean_inputs", drop):
        interrupted(tmp_path)


# === Pipes, codes and terminals =======================================================================================


def test_a_share_that_is_not_known_passes_no_gate(tmp_path):
    """Too few rows to judge: neither 0 (all is well) nor 1 (too many are wrong)."""
    write(tmp_path / "data.csv", SMALL)
    ran = clean("data.csv", *LABEL, "--fail-if-noise-above", "0.01", "--json", "s.json", cwd=tmp_path)
    assert ran.code == 3
    assert "proxbi: it is not known whether more than 1.0 % of the labels are wrong." in ran.err
    assert "not known" in ran.out
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["noise_rate"] == {"estimate": None, "low": None, "high": None}


def test_classes_called_none_and_a_class_without_trusted_rows_are_cleaned(tmp_path):
    rows = "".join(
        f"{i % 3 + i / 100},{['None', 'NA', 'null'][i % 3]},{int(i < 20 and i % 3 < 2)}\n" for i in range(90)
    )
    write(tmp_path / "data.csv", "a,label,gold\n" + rows)
    with using("stand-in"):
        ran = clean("data.csv", *GOLD, "--out", "out.csv", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "Warning: No trusted row has the class 'null'" in ran.err
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert set(found["proxbi_suggested_label"]) == {"None", "NA", "null"}


class Closed(io.BytesIO):
    """A pipe that nobody reads."""

    def write(self, _data):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def piped(*arguments, cwd, rows="", out=None, encoding="utf-8"):
    """`proxbi clean` in this process, with bytes going in and out."""
    into, outs = io.BytesIO(rows.encode()), (out or io.BytesIO(), io.BytesIO())
    streams = [io.TextIOWrapper(each, encoding=encoding) for each in (into, *outs)]
    names = ("stdin", "stdout", "stderr")
    with ExitStack() as stack:
        for name, stream in zip(names, streams, strict=True):
            stack.enter_context(patch.object(sys, name, stream))
        stack.enter_context(patch.object(sys, "argv", ["proxbi", "clean", *map(str, arguments)]))
        stack.enter_context(chdir(cwd))
        ended = stack.enter_context(pytest.raises(SystemExit))
        main()
    if out is None:
        streams[1].flush()
    streams[2].flush()
    return Ran(ended.value.code or 0, *(each.getvalue().decode(encoding) for each in outs))


def test_rows_go_through_pipes_and_sentences_do_not(tmp_path):
    ran = piped("-", *LABEL, "--out", "-", rows=SMALL, cwd=tmp_path)
    assert ran.code == 0, ran.err
    found = list(csv.reader(io.StringIO(ran.out)))
    assert found[0] == ["id", "a", "label", "gold", *ADDED]
    assert len(found) == 21
    assert "It is not known whether any of 20 labels is wrong." in ran.err
    assert "Written: -" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_no_error_of_ours(tmp_path):
    ran = piped("-", *LABEL, "--out", "-", rows=SMALL, out=Closed(), cwd=tmp_path)
    assert (ran.code, ran.err) == (141, "")


def test_a_terminal_that_knows_ascii_only(folder):
    with using("stand-in"):
        ran = piped("data.csv", *COMMON, "--trusted-col", "gold", cwd=folder, encoding="ascii")
    assert ran.code == 0, ran.err
    assert 'with "rows weighted by quality" in' in ran.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--pred-probs", "none.npy"], "none.npy does not exist"),
        (["--pred-probs", "data.txt"], "data.txt has an unknown extension"),
        (["--pred-probs", "probs.csv"], "probs.csv must have one column for each class, and has none for 'y'"),
        (["--pred-probs", "-", "--trusted", "-"], "- is named twice"),
        (["--out", "-", "--json", "-"], "- is named twice"),
        (["--out", f"{'x' * 300}.csv"], "File name too long"),
    ],
)
def test_wrong_paths_are_named_before_the_work(tmp_path, extra, said):
    write(tmp_path / "data.csv", SMALL)
    write(tmp_path / "probs.csv", "x,z\n" + "0.5,0.5\n" * 20)
    ran = clean("data.csv", *LABEL, *extra, cwd=tmp_path)
    assert ran.code == 2
    assert said in ran.err


def test_a_column_called_file_goes_into_an_npz_file(tmp_path):
    write(tmp_path / "data.csv", SMALL.replace("id,", "file,"))
    ran = clean("data.csv", *LABEL, "--out", "out.npz", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert np.load(tmp_path / "out.npz")["file"].tolist() == list(range(20))


def test_the_report_calls_rows_as_a_spreadsheet_does(tmp_path):
    labels = np.where(np.arange(60) == 30, "y", np.where(np.arange(60) < 40, "x", "y"))
    rows = "".join(f"{i // 40 * 9 + i / 100},{label},{int(i % 5 == 0 and i != 30)}\n" for i, label in enumerate(labels))
    write(tmp_path / "data.csv", "a,label,gold\n" + rows)
    with using("stand-in"):
        ran = clean("data.csv", *GOLD, "--report", "report.html", cwd=tmp_path)
    assert ran.code == 0, ran.err
    page = (tmp_path / "report.html").read_text()
    assert re.search(
        r'tabindex="0">line</span>.*?<td class="number">32</td><td class=" was">y</td><td class=" now">x</td>',
        page,
        re.DOTALL,
    )


def test_a_process_of_the_run_that_was_lost_is_a_sentence_and_not_a_traceback() -> None:
    lost = RankLostError("rank 0 of 2 lost another process of this run.")
    with patch("proxbi.cli.app", side_effect=lost):
        assert cli._run() == (75, "rank 0 of 2 lost another process of this run.")


def test_a_package_that_is_not_installed_is_named() -> None:
    missing = ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with patch("proxbi.cli.app", side_effect=missing):
        assert cli._run() == (2, "this command needs sklearn, which is not installed: pip install 'proxbi[all]'.")


@pytest.mark.parametrize("module", ["proxbi", "proxbi.cli"])
def test_help_and_wrong_options_do_not_wait_for_jax(module):
    code = (
        f"import runpy, sys, atexit; sys.argv = ['proxbi', 'clean', '--no-such-option']; "
        f"atexit.register(lambda: print('jax' in sys.modules)); runpy.run_module({module!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
    assert done.stdout == "False\n"


def test_ctrl_c_while_the_command_line_is_imported(capsys):
    from proxbi import __main__ as entry

    class Interrupt:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    with patch.dict(sys.modules, {"proxbi.cli": Interrupt()}), pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "proxbi: interrupted.\n"


def test_progress_is_drawn_on_a_terminal(tmp_path):
    write(tmp_path / "data.csv", SMALL)
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [*PROXBI, "clean", "data.csv", *LABEL], stdout=subprocess.DEVNULL, stderr=secondary, cwd=tmp_path
    ) as process:
        os.close(secondary)
        drawn = b""
        while chunk := _read(primary):
            drawn += chunk
    os.close(primary)
    assert process.returncode == 0
    assert b"writing" in drawn
    assert b"100%" in drawn


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.slow
@pytest.mark.hours
def test_a_million_rows_fit_into_eight_gigabytes(tmp_path):
    rows, width = 1_000_000, 50
    draw = np.random.default_rng(0)
    y = draw.integers(0, 5, rows)
    frame = pd.DataFrame(draw.normal(size=(rows, width)) + draw.normal(size=(5, width))[y]).rename(columns=str)
    frame["kind"] = draw.choice(["a", "b", "c"], rows)
    wrong = draw.random(rows) < 0.2
    frame["label"] = np.where(wrong, (y + 1) % 5, y)
    frame["gold"] = ~wrong & (np.arange(rows) < 10_000)
    frame.astype({str(i): "float32" for i in range(width)}).to_csv(tmp_path / "data.csv", index=False)
    ran = proxbi("clean", "data.csv", *GOLD, "--out", "out.csv", "--report", "report.html", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 8e6  # kilobytes
    found = pd.read_csv(tmp_path / "out.csv", usecols=["proxbi_issue"])["proxbi_issue"].to_numpy()
    assert f1(found, wrong) > 0.9


def test_help_has_an_example():
    assert "Example: proxbi clean data.csv" in " ".join(proxbi("clean", "--help").stdout.split())
