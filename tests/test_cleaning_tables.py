"""Files of rows, read and written again: nothing of them is lost."""

import csv
import gzip
import io
import os
import stat
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbi.cleaning.files import csv_file
from proxbi.cleaning.files.formats import Changes, read, require_room, write, write_arrays
from proxbi.cleaning.files.places import FORGOTTEN, remove_drafts, require_writable, write_all
from proxbi.cleaning.files.probabilities import read_probabilities
from proxbi.cleaning.files.tables import Roles, load

TEXT = """id,"a, b",when,label,note
007,1.50,2024-01-01,cat,"says ""hi"", twice"
008,2,,dog,"two
lines"
009,NA,2024-03-01,cat,ünïcode
010,1e3,2024-03-02,01,
"""


def csv_rows(path):
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(TEXT, encoding="utf-8")
    return read(path, ["id", "label"])


def unchanged(rows):
    return Changes({}, {}, np.ones(rows, bool))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_csv_keeps_the_text_of_every_cell(source, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(csv_file, "CHUNK", chunk)
    changes = Changes(
        {"new": np.arange(4)}, {"label": np.array(["a", "b", "c", "d"])}, np.array([True, False, True, True])
    )
    write(source, changes, tmp_path / "out.csv")
    header, *rows = list(csv.reader(io.StringIO(TEXT)))
    expected = [[*row[:3], label, row[4], str(i)] for i, (row, label) in enumerate(zip(rows, "abcd", strict=True))]
    assert csv_rows(tmp_path / "out.csv") == [[*header, "new"], expected[0], expected[2], expected[3]]


@given(
    cells=st.lists(
        st.tuples(
            *[st.text(st.characters(codec="utf-8", exclude_characters="\r\x00\x1a", exclude_categories=["Cs"]))] * 2
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_survives(cells, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([("one", "two"), *cells])
    write(read(path), unchanged(len(cells)), path.with_name("out.csv"))
    assert csv_rows(path.with_name("out.csv")) == [["one", "two"], *map(list, cells)]


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ";"), ("a.csv", "|"), ("a.tsv", "\t"), ("a.csv", ",")])
def test_the_delimiter_is_found(tmp_path, name, delimiter):
    path = tmp_path / name
    path.write_text(delimiter.join("xyz") + "\n" + delimiter.join("123") + "\n")
    assert read(path).frame.to_dict("records") == [{"x": 1, "y": 2, "z": 3}]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfx,y\n1,2\n")
    assert read(path).names == ["x", "y"]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [(["1", "2", "-3"], "i"), (["01", "2"], "O"), (["1.0", "2"], "O"), (["1", ""], "O"), (["9" * 25, "1"], "O")],
)
def test_labels_become_integers_only_if_nothing_is_lost(tmp_path, cells, kind):
    path = tmp_path / "a.csv"
    path.write_text("label,x\n" + "".join(f"{cell},1\n" for cell in cells))
    found = read(path, ["label"]).frame["label"]
    assert (found.dtype.kind == "i") == (kind == "i")
    assert [str(cell) for cell in found.dropna()] == [cell for cell in cells if cell]


def arrow_table():
    return pa.table(
        {
            "n": pa.array([1, None, 3], pa.int32()),
            "day": pa.array([1, 2, None], pa.date32()),
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32())),
            "label": pa.array(["x", "y", "x"]),
        }
    )


def test_a_parquet_file_keeps_its_types(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(arrow_table(), path)
    write(
        read(path),
        Changes({"new": np.array([0.5, 1.0, 0.0])}, {}, np.array([True, True, False])),
        tmp_path / "b.parquet",
    )
    found = pq.read_table(tmp_path / "b.parquet")
    assert found.drop_columns("new").equals(arrow_table().slice(0, 2))
    assert found["new"].to_pylist() == [0.5, 1.0]


def test_the_index_of_a_frame_is_no_feature_and_is_kept(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "label": list("xyxy")}, index=[10, 20, 30, 40])
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv")
    for name in ("a.parquet", "a.csv"):
        rows = load(tmp_path / name, Roles(label="label"))
        assert list(rows.X.columns) == ["a"]
        write(rows.source, unchanged(4), tmp_path / f"out-{name}")
    assert pd.read_parquet(tmp_path / "out-a.parquet").equals(frame)
    assert (tmp_path / "out-a.csv").read_text() == (tmp_path / "a.csv").read_text()


def arrays():
    return {
        "X": np.arange(12.0).reshape(3, 2, 2),
        "y": np.array(["a", "b", "a"]),
        "X_val": np.ones((3, 2, 2)),
        "other": 7,
    }


def test_an_npz_file_keeps_its_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    kept = np.array([True, False, True])
    write(
        read(tmp_path / "a.npz"), Changes({"new": np.arange(3)}, {"y": np.array(["b"] * 3)}, kept), tmp_path / "b.npz"
    )
    with np.load(tmp_path / "b.npz") as found:
        assert set(found.files) == {*arrays(), "new"}
        assert np.array_equal(found["X"], arrays()["X"][kept])
        assert found["y"].tolist() == ["b", "b"]
        assert found["new"].tolist() == [0, 2]
        assert np.array_equal(found["X_val"], arrays()["X_val"])  # as many rows as X, and yet not X's


@pytest.mark.parametrize("target", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("start", [".csv", ".parquet", ".npz"])
def test_every_kind_can_be_written_as_every_other(tmp_path, start, target):
    frame = pd.DataFrame({"a": [1.5, 2.5, np.nan], "n": [1, 2, 3], "label": ["x", "y", "x"]})
    path = tmp_path / f"a{start}"
    {
        ".csv": lambda: frame.to_csv(path, index=False),
        ".parquet": lambda: frame.to_parquet(path),
        ".npz": lambda: np.savez(path, X=frame[["a"]].to_numpy(), n=frame["n"], label=frame["label"].to_numpy("U1")),
    }[start]()
    out = tmp_path / f"b{target}"
    write(read(path), Changes({"new": np.array([True, False, True])}, {}, np.ones(3, bool)), out)
    found = read(out)
    columns = found.arrays if target == ".npz" else found.frame
    value = "X_0" if start == ".npz" and target != ".npz" else "X" if start == ".npz" else "a"
    np.testing.assert_array_equal(np.asarray(columns[value], float).ravel(), frame["a"])
    assert list(columns["n"]) == [1, 2, 3]
    assert list(columns["label"]) == ["x", "y", "x"]
    assert list(columns["new"]) == [True, False, True]


def test_files_are_written_whole_or_not_at_all(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.html"
    first.write_text("old")

    def fail(_draft):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"b\.html cannot be written: No space left on device"):
        write_all([(first, lambda draft: draft.write_text("new")), (second, fail)])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.csv": "old"}

    def write_while_the_old_stands(draft):
        assert draft.suffix == ".html"
        assert first.read_text() == "old"
        draft.write_text("new")

    write_all([(first, lambda draft: draft.write_text("new")), (second, write_while_the_old_stands)])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.csv": "new", "b.html": "new"}


# === Where files go ===================================================================================================


def put(path, text="new"):
    """Write one output."""
    write_all([(path, lambda draft: draft.write_text(text))])


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root makes devices")
def test_a_device_stays_a_device(tmp_path):
    device = tmp_path / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    require_writable(device)
    put(device)
    put(device)
    assert device.is_char_device()


def test_a_pipe_gets_what_is_written(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    put(pipe)
    reader.join(10)
    assert got == ["new"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_stays_one_and_its_file_is_written(tmp_path, there):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    if there:
        target.write_text("old")
    link.symlink_to("target.json")
    require_writable(link)
    put(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"target.json", "link.json"}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_keeps_its_mode_from_the_first_byte_on(tmp_path, mode):
    path, modes = tmp_path / "private.csv", []
    path.write_text("old")
    path.chmod(mode)
    write_all([(path, lambda draft: modes.append(stat.S_IMODE(draft.stat().st_mode)))])
    assert modes == [mode]
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_file_that_is_protected_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "out.csv").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # as for anybody but root
    with pytest.raises(OSError, match=r"out\.csv cannot be written: Permission denied"):
        require_writable(tmp_path / "out.csv")


def test_a_new_file_has_the_mode_of_any_other(tmp_path):
    (tmp_path / "any").write_text("")
    put(tmp_path / "out.csv")
    assert (tmp_path / "out.csv").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_names_that_are_too_long_are_refused_before_the_work_and_long_ones_are_not(tmp_path):
    require_writable(tmp_path / f"{'x' * 246}.csv")
    put(tmp_path / f"{'x' * 246}.csv")
    with pytest.raises(OSError, match=r"x\.csv cannot be written: File name too long"):
        require_writable(tmp_path / f"{'x' * 260}.csv")


def test_drafts_of_processes_that_were_killed_are_removed(tmp_path):
    names = {"forgotten": f".proxbi-{2**22 + 1}-1.tmp.csv", "other": f".proxbi-{os.getppid()}-1.tmp.csv"}
    for name in names.values():
        (tmp_path / name).write_text("half of a fi")
        os.utime(tmp_path / name, (time.time() - 2 * FORGOTTEN,) * 2)
    (tmp_path / f".proxbi-{2**22 + 1}-2.tmp.csv").write_text("young")
    put(tmp_path / "out.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", names["other"], f".proxbi-{2**22 + 1}-2.tmp.csv"}


def test_at_the_end_of_a_run_the_drafts_of_its_killed_workers_are_removed_and_no_others(tmp_path):
    class Killed(BaseException):
        """In the middle of a write, where nothing can be tidied up."""

    for run in ("mine", "theirs"):
        with patch.object(Path, "unlink"), pytest.raises(Killed):
            write_all([(tmp_path / "out.csv", Mock(side_effect=Killed))], run)
    assert len(list(tmp_path.iterdir())) == 2
    remove_drafts(tmp_path, "mine")
    assert [path.name.split("-")[-1] for path in tmp_path.iterdir()] == ["theirs.tmp.csv"]


def test_standard_output(capfdbinary, tmp_path):
    write_all([(Path("-"), lambda draft: draft.write_text("a,b\n"))])
    assert capfdbinary.readouterr().out == b"a,b\n"


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "npz"])
def test_standard_input_brings_any_kind_of_file(tmp_path, monkeypatch, kind):
    frame, path = pd.DataFrame({"a": [1.5, 2.5], "label": ["x", "y"]}), tmp_path / f"data.{kind}"
    if kind == "npz":
        np.savez(path, X=frame[["a"]], y=frame["label"].to_numpy("U1"))
    else:
        frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        found = read(Path("-"))
    assert found.name == "standard input"
    write(found, unchanged(2), tmp_path / "out.csv")  # a CSV is read a second time here
    assert [row[0] for row in csv_rows(tmp_path / "out.csv")] == ["X_0" if kind == "npz" else "a", "1.5", "2.5"]
    assert found.path.exists()
    folder = found.path.parent
    del found
    assert not folder.exists()


# === CSV files as people have them ====================================================================================


def read_text(tmp_path, text, *columns, name="data.csv"):
    (tmp_path / name).write_text(text)
    return read(tmp_path / name, columns)


def test_in_text_only_the_empty_cell_is_missing(tmp_path):
    text = "label,who,kind,n\nNone,NA,null,NA\nNA,,N/A,1\nnan,n/a,,2.5\n"
    frame = read_text(tmp_path, text, "label", "who").frame
    assert frame["label"].tolist() == ["None", "NA", "nan"]
    assert frame["who"].isna().tolist() == [False, True, False]
    assert frame["kind"].isna().tolist() == [False, False, True]
    assert frame["n"].dtype == float
    assert frame["n"].isna().tolist() == [True, False, False]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv"])
def test_decimal_commas_are_numbers_and_the_output_has_them_too(tmp_path, ending):
    sign = "\t" if ending == "tsv" else ";"
    rows = [["a", "b", "note", "label"], ["1,5", "1.234,50", "x,y", "c"], ["-2", "", "1,2", "d"]]
    text = "".join(sign.join(row) + "\n" for row in rows)
    path = tmp_path / f"data.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    source = read(path, ["label"])
    assert source.frame["a"].tolist() == [1.5, -2.0]
    assert source.frame["b"].tolist()[:1] == [1234.5]
    assert source.frame["note"].tolist() == ["x,y", "1,2"]
    out = tmp_path / f"out.{ending}"
    write(source, Changes({"proxbi_weight": np.array([0.25, 1.0])}, {}, np.ones(2, bool)), out)
    found = gzip.decompress(out.read_bytes()).decode() if ending.endswith("gz") else out.read_text()
    expected = [[*row, more] for row, more in zip(rows, ["proxbi_weight", "0,25", "1,0"], strict=True)]
    assert found == "".join(sign.join(row) + "\n" for row in expected)


def test_commas_between_cells_are_not_decimal_ones(tmp_path):
    frame = read_text(tmp_path, 'a,label\n"1,500",x\n"2,500",y\n').frame
    assert frame["a"].tolist() == ["1,500", "2,500"]


def test_the_same_rows_give_the_same_gzip_file(tmp_path, source):
    for name in ("a.csv.gz", "b.csv.gz"):
        write(source, unchanged(4), tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).decode() == TEXT


def test_a_gzipped_file_may_have_any_name_and_a_first_line_be_blank(tmp_path):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"\nx;label\n1;a\n"))
    source = read(tmp_path / "a.csv")
    assert source.names == ["x", "label"]
    assert source.where(0).startswith("line 3 ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"sep=;\na;label\n1;x\n", "begins with 'sep=;', a line for Excel only"),
        (b"# made by hand\na,label\n1,x\n", "begins with a comment, '# made by hand'"),
        (gzip.compress(b"a,label\n1,x\n" * 99, mtime=0)[:40], "not a gzip file that can be read"),
    ],
)
def test_what_is_wrong_with_the_beginning_of_a_csv_is_said(tmp_path, content, said):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "a.csv")


def test_a_name_may_begin_as_a_comment_does(tmp_path):
    assert read_text(tmp_path, "#,label\n1,x\n").names == ["#", "label"]


def test_rows_are_counted_as_a_spreadsheet_does(tmp_path):
    source = read_text(tmp_path, 'a,label\n1,"two\nlines"\n\n2,y\n')
    assert list(source.lines()) == [2, 4]


# === npz and Parquet files as people have them ========================================================================


def test_no_array_is_lost_when_names_collide(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.arange(4.0).reshape(2, 2), y=[0, 1], X_0=[7, 8])
    write(read(tmp_path / "a.npz"), unchanged(2), tmp_path / "b.csv")
    found = pd.read_csv(tmp_path / "b.csv")
    assert found["X_0"].tolist() == [7, 8]
    assert found[["X__0", "X__1"]].to_numpy().tolist() == [[0, 1], [2, 3]]


def test_columns_of_any_name_go_into_an_npz_file(tmp_path):
    source = read_text(tmp_path, "file,allow_pickle,label\na.png,1,x\nb.png,2,\n", "label")
    write(source, unchanged(2), tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as found:
        assert found["file"].tolist() == ["a.png", "b.png"]
        assert found["allow_pickle"].tolist() == [1, 2]
        assert found["label"].tolist() == ["x", ""]


def test_a_renamed_npy_file_and_arrays_beyond_memory_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"a\.npz has a single array, as npy files do"):
        read(tmp_path / "a.npz")
    huge = tmp_path / "huge.npz"
    write_arrays(huge, {"X": np.eye(3)})
    huge.write_bytes(huge.read_bytes().replace(b"(3, 3), }" + b" " * 14, b"(1000000, 1000000), }"[:23].ljust(23)))
    with pytest.raises(ValueError, match=r"huge\.npz"):
        read(huge)


def test_bytes_are_text(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(4), y=np.array([b"a", b"b", b"a", b"b"]), groups=np.array([b"g"] * 4))
    rows = load(tmp_path / "a.npz", Roles())
    assert rows.y.tolist() == ["a", "b", "a", "b"]
    assert rows.groups.tolist() == ["g"] * 4
    write(rows.source, Changes({}, {"y": np.array(["b"] * 4)}, np.ones(4, bool)), tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as found:
        assert found["y"].tolist() == [b"b"] * 4
    write(rows.source, unchanged(4), tmp_path / "b.csv")
    assert csv_rows(tmp_path / "b.csv")[1][4:] == ["a", "g"]


def test_a_categorical_label_stays_categorical(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "label": pd.Categorical(list("xyxy"), ["y", "x"])})
    frame.to_parquet(tmp_path / "a.parquet")
    rows = load(tmp_path / "a.parquet", Roles(label="label"))
    changes = Changes({}, {"label": np.array(list("xxyy"), object)}, np.ones(4, bool))
    write(rows.source, changes, tmp_path / "b.parquet")
    found = pd.read_parquet(tmp_path / "b.parquet")["label"]
    assert found.dtype == "category"
    assert found.tolist() == list("xxyy")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1.0], [2.0], [3.0], [4.0]], None),
        ([[1.0], [2.0, 3.0], [3.0], [4.0]], "Column 'v' must have lists of one length"),
        ([{"a": 1}] * 4, "Column 'v' has structures, which an npz file cannot hold"),
    ],
)
def test_what_an_npz_file_cannot_hold_is_said_before_the_work(tmp_path, values, said):
    pq.write_table(pa.table({"v": values, "label": list("xyxy")}), tmp_path / "a.parquet")
    source = read(tmp_path / "a.parquet")
    if said is None:
        require_room(source, tmp_path / "b.npz")
        write(source, unchanged(4), tmp_path / "b.npz")
        assert np.load(tmp_path / "b.npz")["v"].tolist() == values
    else:
        with pytest.raises(ValueError, match=said):
            require_room(source, tmp_path / "b.npz")


def test_labels_that_are_lists_are_named(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "label": [[1], [2]]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"Column 'label' of .* must have one label for each row, .* in row 0"):
        load(tmp_path / "a.parquet", Roles(label="label"))


# === Probabilities of another model ===================================================================================

CLASSES = np.array(["cat", "dog"])
CHANCES = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])


def saved(tmp_path, kind, values=CHANCES, names=("cat", "dog")):
    path, frame = tmp_path / f"probs.{kind}", pd.DataFrame(values, columns=list(names))
    {
        "npy": lambda: np.save(path, values),
        "npz": lambda: np.savez(path, pred_probs=values, other=1),
        "csv": lambda: frame.to_csv(path),
        "parquet": lambda: frame.to_parquet(path),
    }[kind]()
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "parquet"])
def test_probabilities_come_from_every_kind_of_file(tmp_path, kind):
    np.testing.assert_allclose(read_probabilities(saved(tmp_path, kind), 3, CLASSES), CHANCES)


def test_probabilities_are_found_by_class_or_by_order(tmp_path):
    by_name = saved(tmp_path, "csv", CHANCES[:, ::-1], ["dog", "cat"])
    np.testing.assert_allclose(read_probabilities(by_name, 3, CLASSES), CHANCES)
    by_order = saved(tmp_path, "csv", CHANCES, ["p1", "p2"])
    np.testing.assert_allclose(read_probabilities(by_order, 3, CLASSES), CHANCES)
    numbers = saved(tmp_path, "csv", CHANCES[:, ::-1], ["7", "3"])
    np.testing.assert_allclose(read_probabilities(numbers, 3, np.array([3, 7])), CHANCES)


@pytest.mark.parametrize(
    ("values", "names", "said"),
    [
        (CHANCES[:2], ["cat", "dog"], r"a row for each of the 3 rows and a column for each of the 2 .* shape \(2, 2\)"),
        (CHANCES, ["cat", "cow"], "one column for each class, and has none for 'dog'"),
        (CHANCES[:, [0, 1, 1]], ["cat", "dog", "cow"], "has also 'cow'"),
        ([[0.25, 0.75], [1.0, 0.0], [-0.5, 1.5]], ["cat", "dog"], r"got -0.5 in line 4 .*the column of class 'cat'"),
        ([[0.25, 0.75], [1.0, np.nan], [1, 0]], ["cat", "dog"], r"got nan in line 3 .*the column of class 'dog'"),
        ([[0.25, 0.5], [1.0, 0.0], [1, 0]], ["cat", "dog"], r"sum to 1 in each row, got 0.75 in line 2"),
        ([["a", "b"]] * 3, ["cat", "dog"], "numbers only"),
    ],
)
def test_wrong_probabilities_are_named(tmp_path, values, names, said):
    path = saved(tmp_path, "csv", values, names)
    with pytest.raises(ValueError, match=said) as error:
        read_probabilities(path, 3, CLASSES)
    assert str(error.value).startswith(str(path))


# === Which column is what =============================================================================================


@pytest.mark.parametrize("marks", [["1", "0", ""], ["True", "False", "false"], ["yes", "no", " "], ["1.0", "0.0", ""]])
def test_a_trusted_column_may_be_written_in_many_ways(tmp_path, marks):
    path = tmp_path / "a.csv"
    path.write_text("a,label,gold\n" + "".join(f"{i},{'xy'[i % 2]},{marks[i % 3]}\n" for i in range(6)))
    rows = load(path, Roles(label="label", trusted_column="gold"))
    assert rows.trusted.tolist() == [True, False, False] * 2
    assert list(rows.X.columns) == ["a"]


def test_roles_take_columns_from_the_features(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("key,a,b,label,who\n" + "".join(f"{i},{i},{i},{'xy'[i % 2]},w{i % 2}\n" for i in range(4)))
    rows = load(path, Roles(label="label", group="who", id="key", drop=["b"]))
    assert list(rows.X.columns) == ["a"]
    assert rows.ids == [0, 1, 2, 3]
    assert rows.groups.tolist() == ["w0", "w1", "w0", "w1"]
    assert rows.trusted is rows.X_val is None


def test_a_second_file_brings_its_columns_in_any_order(tmp_path):
    path, gold = tmp_path / "a.csv", tmp_path / "gold.parquet"
    path.write_text("a,b,label\n" + "".join(f"{i},{-i},{'xy'[i % 2]}\n" for i in range(6)))
    pd.DataFrame({"label": ["y", "x"], "more": [0, 0], "b": [5, 6], "a": [7, 8]}).to_parquet(gold)
    rows = load(path, Roles(label="label", trusted_file=gold))
    assert rows.X_val.to_dict("list") == {"a": [7, 8], "b": [5, 6]}
    assert rows.y_val.tolist() == ["y", "x"]


def test_an_npz_file_says_itself_what_is_what(tmp_path):
    path = tmp_path / "a.npz"
    X = np.random.default_rng(0).normal(size=(6, 3))
    np.savez(
        path, X=X, y=np.arange(6) % 2, trusted=np.arange(6) < 2, groups=np.arange(6) // 3, X_val=X[:2], y_val=[0, 1]
    )
    rows = load(path, Roles())
    assert rows.trusted.sum() == 2
    assert rows.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.X_val.shape == (2, 3)


def test_an_unknown_extension_is_refused():
    with pytest.raises(ValueError, match=r"data\.xlsx"):
        read(Path("data.xlsx"))
