"""Files of rows, read and written again: nothing of them is lost."""

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxbi.cleaning.files import csv_file
from proxbi.cleaning.files.formats import Changes, read, write
from proxbi.cleaning.files.places import write_all
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
