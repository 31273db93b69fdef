"""Rows on the host in compiled programs: the same numbers as in memory, block by block, each read once a pass."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from proxbi import (
    AID,
    CG,
    L1,
    AdaptiveProxBiO,
    Checkpoint,
    GradientDescent,
    MemmapRows,
    Problem,
    ProxBiO,
    RowError,
    Rows,
    RowSource,
    Separable,
    Zero,
    minimize,
)
from proxbi._hosted import hosted
from proxbi.checkpoint import fingerprint
from proxbi.cleaning import hyper_cleaning
from proxbi.datasets import Labelled, ParquetRows
from proxbi.glm import Linear, Logistic, Squared, linear_model, streamed_model
from proxbi.rows._host import HostRows, Prefetched

ROWS, FEATURES, CLASSES, RIDGE = 103, 4, 3, 0.01
DRAW = np.random.default_rng(5)
Z = DRAW.integers(0, 9, size=(ROWS, FEATURES)).astype(np.uint8)
T = DRAW.integers(CLASSES, size=ROWS).astype(np.uint8)
GOLD = Labelled(DRAW.normal(size=(20, FEATURES)), DRAW.integers(CLASSES, size=20))
X, Y, V = DRAW.normal(size=ROWS), DRAW.normal(size=(CLASSES, FEATURES)), DRAW.normal(size=(CLASSES, FEATURES))
ORACLES = {
    "value": lambda p, y, v: p.value_lower(X, y),
    "gradient": lambda p, y, v: p.grad_lower(X, y),
    "gradient in x": lambda p, y, v: p.grad_lower_x(X, y),
    "Hessian product": lambda p, y, v: p.hvp(X, y)(v),
    "cross product": lambda p, y, v: p.cross(X, y)(v),
    "upper gradient": lambda p, y, v: p.grad_upper(X, y)[1],
}


def require_equal(ours: Any, theirs: Any, y: Any = Y, v: Any = V) -> None:
    every = jax.jit(lambda p, y, v: {name: jax.tree.leaves(oracle(p, y, v)) for name, oracle in ORACLES.items()})
    one, other = (every(p, y, v) for p in (ours, theirs))
    for name in ORACLES:
        for a, b in zip(one[name], other[name], strict=True):
            assert_allclose(a, b, rtol=1e-12, atol=1e-13, err_msg=name)


IN_MEMORY = hyper_cleaning(Labelled(Z.astype(float), T.astype(int)), GOLD, RIDGE, L1(1e-4), preconditioned=False)


# --- the same numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [7, 52, 2 * ROWS])
def test_any_block_gives_the_numbers_of_all_rows(block: int) -> None:
    require_equal(streamed_model(MemmapRows((Z, T)), GOLD, ridge=2 * RIDGE, block=block), IN_MEMORY)


@pytest.mark.parametrize("loss", [Logistic(), Squared()])
def test_other_losses_and_a_bias(loss: Any) -> None:
    t = (T > 0).astype(np.float32)
    y, v = (Linear(jnp.asarray(each[0]), jnp.asarray(each[1, 0])) for each in (Y, V))
    gold = (GOLD.features, (GOLD.labels > 0).astype(float))
    ours = streamed_model(MemmapRows((Z, t)), gold, loss, ridge=0.1, block=40, weights=jax.nn.softplus)
    theirs = linear_model((Z.astype(float), t.astype(float)), gold, loss, ridge=0.1, weights=jax.nn.softplus)
    require_equal(ours, theirs, y, v)


def test_the_preconditioner_is_that_of_all_rows() -> None:
    ours = streamed_model(MemmapRows((Z, T)), GOLD, ridge=2 * RIDGE, block=20, preconditioned=True)
    theirs = hyper_cleaning(Labelled(Z.astype(float), T.astype(int)), GOLD, RIDGE)
    assert_allclose(ours.preconditioner(X, Y)(V), theirs.preconditioner(X, Y)(V), rtol=1e-9)


def solved(problem: Any) -> Any:
    solver = ProxBiO(AID(GradientDescent(0.02, steps=5), CG(5)), step_size=20.0)
    return minimize(problem, jnp.zeros(ROWS), jnp.zeros((CLASSES, FEATURES)), solver, steps=12)


def test_a_solver_takes_the_steps_that_it_takes_in_memory() -> None:
    ours, theirs = solved(hyper_cleaning(MemmapRows((Z, T)), GOLD, RIDGE, L1(1e-4))), solved(IN_MEMORY)
    assert_allclose(ours.x, theirs.x, rtol=1e-9, atol=1e-12)
    assert_array_equal(ours.x == 0, theirs.x == 0)
    assert ours.counts.as_dict() == theirs.counts.as_dict()
    assert float(jnp.abs(ours.x).max()) > 0.01  # it did move


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_the_default_solver_finds_the_point_that_it_finds_in_memory() -> None:
    x, y = jnp.zeros(ROWS), jnp.zeros((CLASSES, FEATURES))
    streamed = streamed_model(MemmapRows((Z, T)), GOLD, ridge=2 * RIDGE, regularizer=L1(1e-4), block=30)
    ours, theirs = (minimize(p, x, y, steps=40) for p in (streamed, IN_MEMORY))
    assert ours.converged
    assert_allclose(ours.objective, theirs.objective, rtol=1e-9)
    assert_allclose(ours.x, theirs.x, atol=1e-6)


# --- blocks -----------------------------------------------------------------------------------------------------------


class Spy(RowSource):
    """Rows that say when they are read."""

    def __init__(self, values: np.ndarray):
        self.values, self.read = values, list[tuple[int, int]]()

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: np.ndarray) -> Any:
        return self.values[indices]

    def block(self, start: int, stop: int) -> Any:
        self.read.append((start, stop))
        return self.values[start:stop]


def test_a_pass_reads_each_block_once_and_one_ahead() -> None:
    source = Spy(np.arange(100, dtype=np.uint8))
    rows = HostRows(Prefetched(source, block=24))
    source.read.clear()
    total = jax.jit(lambda: rows.sum(lambda block: jnp.sum(block.counts * block.rows.astype(jnp.float32))))
    assert float(total()) == float(total()) == 4950
    rows.source._thread.shutdown()
    blocks = [(0, 20), (20, 40), (40, 60), (60, 80), (80, 100)]
    assert source.read == [*blocks, *blocks, blocks[0]]


def test_rows_are_cast_inside_of_the_program() -> None:
    rows = HostRows(Prefetched(MemmapRows((Z, T)), block=10))
    arrived = jax.eval_shape(lambda: rows.block(jnp.int32(0)).rows)
    assert [leaf.dtype for leaf in arrived] == [np.uint8, np.uint8]
    assert [leaf.dtype for leaf in rows.source.number(0)] == [np.uint8, np.uint8]  # what the host hands over


def test_sums_are_compensated() -> None:
    """A hundred thousand and then three thousand blocks of a hundredth: plain sums in single precision lose digits."""
    values = np.full(3001, 0.01, np.float32)
    values[0] = 1e5
    rows, truth = HostRows(Prefetched(MemmapRows(values), block=1)), float(values.astype(np.float64).sum())
    ours = float(jax.jit(lambda: rows.sum(lambda block: jnp.sum(block.rows)))())
    plain = np.float32(0)
    for value in values:
        plain += value
    assert abs(ours - truth) < 0.01
    assert abs(float(plain) - truth) > 1  # negative control


def test_sources_are_told_apart_for_checkpoints() -> None:
    made = [hyper_cleaning(MemmapRows((z, T)), GOLD, RIDGE) for z in (Z, Z.copy(), Z[::-1].copy())]
    marks = [fingerprint(problem, AdaptiveProxBiO()) for problem in made]
    assert marks[0] == marks[1]
    assert marks[0]["data"] != marks[2]["data"]


# --- any problem on rows ----------------------------------------------------------------------------------------------

START = {"weight": X, "ridge": jnp.asarray(0.3)}


def log_loss(y: Any, batch: Any) -> Any:
    scores = batch["z"].astype(y.dtype) @ y.T
    return jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, batch["t"][:, None].astype(int), axis=1)[:, 0]


def lower(x: Any, y: Any, batch: Any) -> Any:
    weighed = jnp.mean(jax.nn.sigmoid(x["weight"][batch.index]) * log_loss(y, batch))
    return weighed + 0.05 * (1 + x["ridge"] ** 2) * jnp.sum(y**2)


def upper(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(log_loss(y, batch)) + 0.01 * x["ridge"] ** 2


def on_rows(source: Any, lower: Any = lower, upper: Any = upper, **rows: Any) -> Problem:
    train, held_out = {"z": Z, "t": T}, {"z": GOLD.features, "t": GOLD.labels}
    h = Separable({"weight": L1(1e-4), "ridge": Zero()})
    return Problem(upper, lower, h, Rows(upper=source(held_out), lower=source(train), **rows))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxbi.rows._host.BYTES", 100)  # 20 rows of the training set


ALL_OF = {
    "values": lambda p, x, v: (p.value_upper(x, Y), p.value_lower(x, Y)),
    "upper gradients": lambda p, x, v: p.value_and_grad_upper(x, Y),
    "lower gradients": lambda p, x, v: (p.value_and_grad_lower(x, Y), p.grad_lower_x(x, Y)),
    "products": lambda p, x, v: (p.hvp(x, Y)(v), p.cross(x, Y)(v)),
}


@pytest.mark.usefixtures("small_blocks")
def test_any_problem_on_rows_has_the_oracles_that_it_has_in_memory() -> None:
    streamed, plain = hosted(on_rows(MemmapRows), START, Y), on_rows(dict)
    assert streamed.data.lower.source.blocks == 6
    assert streamed.data.upper.source.blocks > 1
    every = jax.jit(lambda p, x, v: {name: oracle(p, x, v) for name, oracle in ALL_OF.items()})
    ours, theirs = (every(p, START, jnp.asarray(V)) for p in (streamed, plain))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=jax.tree_util.keystr(path))
    assert streamed.row_numbers() == plain.row_numbers()


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_a_full_batch_solver_takes_rows_of_a_file(tmp_path: Path) -> None:
    solver = ProxBiO(AID(GradientDescent(0.02, steps=5), CG(5)), step_size=5.0)
    ours, theirs = (
        minimize(on_rows(source), START, jnp.zeros_like(Y), solver, steps=8, every=4, **more)
        for source, more in ((MemmapRows, {"callbacks": [Checkpoint(tmp_path)]}), (dict, {}))
    )
    assert_allclose(ours.x["weight"], theirs.x["weight"], rtol=1e-9, atol=1e-12)
    assert_array_equal(ours.x["weight"] == 0, theirs.x["weight"] == 0)
    assert_allclose([ours.x["ridge"], ours.objective], [theirs.x["ridge"], theirs.objective], rtol=1e-9)
    assert ours.counts.as_dict() == theirs.counts.as_dict()
    assert float(jnp.abs(ours.x["weight"] - X).max()) > 1e-3  # it did move
    resumed = minimize(on_rows(MemmapRows), START, jnp.zeros_like(Y), solver, steps=8, resume=tmp_path)
    assert_array_equal(resumed.x["weight"], ours.x["weight"])


BAD_LEVELS: dict[str, tuple[Any, str]] = {
    "rows of others": (
        {"lower": lambda x, y, b: lower({**x, "weight": jnp.roll(x["weight"], 1)}, y, b)},
        "lower depends on entries of x that belong to other rows",
    ),
    "a sum": ({"lower": lambda x, y, b: len(b) * lower(x, y, b)}, "lower must be a mean over the rows of its batch"),
    "upper with entries of rows": (
        {"upper": lambda x, y, b: upper(x, y, b) + jnp.sum(x["weight"])},
        "upper depends on entries of x that belong to other rows",
    ),
    "classes": ({"classes": 2}, r"upper\['t'\] has values outside of 0\.\.1"),
}


@pytest.mark.parametrize("name", BAD_LEVELS)
def test_functions_and_rows_that_cannot_be_streamed_are_named(name: str) -> None:
    more, said = BAD_LEVELS[name]
    with pytest.raises(ValueError, match=said):
        minimize(on_rows(MemmapRows, **more), START, jnp.zeros_like(Y))


def test_an_x_of_another_length_than_the_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use the number of a row only as x\[batch\.index\]"):
        minimize(on_rows(MemmapRows), START | {"weight": X[:7]}, jnp.zeros_like(Y))
    with pytest.raises(ValueError, match=f"No leaf of x0 has a first axis of {ROWS}, the number of rows"):
        minimize(on_rows(MemmapRows), START | {"weight": np.append(X, 0.0)}, jnp.zeros_like(Y))


# --- Parquet ----------------------------------------------------------------------------------------------------------


def written(folder: Path, **columns: Any) -> Path:
    table = pa.table({f"z{i}": Z[:, i] for i in range(FEATURES)} | {"t": T} | columns)
    pq.write_table(table.slice(0, 60), folder / "a.parquet", row_group_size=17)
    pq.write_table(table.slice(60), folder / "b.parquet", row_group_size=50)
    return folder


def test_parquet_rows_are_the_rows(tmp_path: Path) -> None:
    rows = ParquetRows(written(tmp_path), "t")
    assert len(rows) == ROWS
    some = np.array([102, 0, 59, 60, 0, 33])
    for ours, theirs in zip(rows.take(some), (Z[some], T[some]), strict=True):
        assert_array_equal(ours, theirs)
        assert ours.dtype == np.uint8
    for start, stop in [(0, ROWS), (10, 70), (59, 61), (102, 103)]:
        features, targets = rows.block(start, stop)
        assert_array_equal(features, Z[start:stop])
        assert_array_equal(targets, T[start:stop])
    assert len(rows._kept) == 2
    require_equal(streamed_model(rows, GOLD, ridge=2 * RIDGE, block=25), IN_MEMORY)


def test_parquet_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    written(tmp_path, kind=["a"] * ROWS, gaps=[None, *range(ROWS - 1)])
    with pytest.raises(RowError, match="has no column 'label'"):
        ParquetRows(tmp_path, "label")
    with pytest.raises(RowError, match="matches no Parquet file"):
        ParquetRows(tmp_path / "*.pq", "t")
    with pytest.raises(RowError, match=r"column 'kind' .* must have numbers only, and has the type string"):
        ParquetRows(tmp_path, "t", ["z0", "kind"]).block(0, 5)
    with pytest.raises(RowError, match=r"column 'gaps' .* has 1 missing values"):
        ParquetRows(tmp_path, "t", ["z0", "gaps"]).block(0, 5)
    pq.write_table(pa.table({"t": [1]}), tmp_path / "c.parquet")
    with pytest.raises(RowError, match=r"c\.parquet has other columns"):
        ParquetRows(tmp_path, "t")


def test_parquet_files_that_differ_or_are_damaged_are_named(tmp_path: Path) -> None:
    """In place of rows in two types, or an error of Arrow from inside of a compiled step."""
    names = ("a", "t")
    one, other = tmp_path / "1.parquet", tmp_path / "2.parquet"
    (tmp_path / "3.parquet").mkdir()  # as Spark calls folders of files
    pq.write_table(pa.table([np.ones(9, np.float32), np.ones(9, np.uint8)], names), one)
    pq.write_table(pa.table([np.ones(9), np.ones(9, np.uint8)], names), other)
    with pytest.raises(RowError, match=r"column 'a' is float in .*1\.parquet and double in .*2\.parquet"):
        ParquetRows(tmp_path, "t")
    pq.write_table(pa.table([np.ones(9, np.float32)] * 2, ("t", "t")), one)
    with pytest.raises(RowError, match=r"1\.parquet has two columns called 't'"):
        ParquetRows(one, "t")
    other.write_bytes(other.read_bytes()[:-20])
    with pytest.raises(RowError, match=r"2\.parquet is not a Parquet file that can be read"):
        ParquetRows(other, "t")
    pq.write_table(pa.table([np.arange(9.0), np.ones(9, np.uint8)], names), other, write_page_checksum=True)
    rows = ParquetRows(other, "t")
    flip(other, 40)
    with pytest.raises(RowError, match=r"2\.parquet is not a Parquet file that can be read.*CRC"):
        rows.block(0, 9)
    pq.write_table(pa.table([np.ones(5), np.ones(5, np.uint8)], names), other)
    with pytest.raises(RowError, match="had 9 rows in row group 0, and has 5 now"):
        rows.block(0, 9)


def test_a_parquet_file_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    """By one of as many rows too, of which a run would have used some from each."""
    path = tmp_path / "1.parquet"
    table = pa.table([np.arange(9.0), np.ones(9, np.uint8)], ("a", "t"))
    pq.write_table(table, path)
    rows = ParquetRows(path, "t")
    pq.write_table(table.set_column(0, "a", pa.array(np.arange(9.0) + 1)), path)
    with pytest.raises(RowError, match=r"1\.parquet has changed since it was opened: open it again\."):
        rows.block(0, 9)


def flip(path: Path, place: int) -> None:
    """One bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((Z[:0], T[:0]), "there are no rows"),
        ((Z.astype(object), T), "rows must be real numbers, got the type object"),
        ((Z + 1j, T), "rows must be real numbers, got the type complex128"),
    ],
)
def test_rows_that_are_no_numbers_are_refused(rows: Any, said: str) -> None:
    with pytest.raises(RowError, match=said):
        streamed_model(MemmapRows(rows), GOLD, ridge=0.1)


def test_numbers_that_do_not_fit_are_refused() -> None:
    """JAX would wrap integers around, and makes infinite numbers of large ones."""
    large, long = Z.astype(float), T.astype(np.int64)
    large[5, 1], long[9] = 1e300, 2**40
    with jax.enable_x64(False):
        with pytest.raises(RowError, match="rows have the integer 1,099,511,627,776, which int32 cannot hold"):
            streamed_model(MemmapRows((Z.astype(np.float16), long)), GOLD, Squared(), ridge=0.1)
        with pytest.raises(RowError, match=r"train\[0\] has NaN or infinite values in 1 row\(s\): 5"):
            streamed_model(MemmapRows((large, T)), GOLD, ridge=0.1)


class Gaps(MemmapRows):
    """Rows whose labels, or features, have another type further down, as columns with gaps have in pandas."""

    def __init__(self, which: int, dtype: Any):
        super().__init__((Z, T))
        self.which, self.dtype = which, dtype

    def block(self, start: int, stop: int) -> Any:
        rows = list(super().block(start, stop))
        rows[self.which] = rows[self.which].astype(self.dtype) if start else rows[self.which]
        return tuple(rows)


@pytest.mark.parametrize(("which", "dtype"), [(1, float), (0, complex), (0, "U8"), (0, object)])
def test_a_type_that_changes_further_down_is_named(which: int, dtype: Any) -> None:
    """A label of 0.5 would become 0, NaN any number, and text whatever it looks like."""
    with pytest.raises(RowError, match=r"and the first row .*: all must have one type"):
        streamed_model(Gaps(which, dtype), GOLD, ridge=0.1, block=25)


def test_a_file_that_is_cut_during_a_run_is_named(tmp_path: Path) -> None:
    """The system would kill the process."""
    np.save(tmp_path / "z.npy", np.tile(Z, (2000, 1)))
    features = np.load(tmp_path / "z.npy", mmap_mode="r")
    rows = MemmapRows((features[5:], np.tile(T, 2000)[5:]))
    assert rows.block(0, 3)[0].tolist() == rows.take(np.arange(3))[0].tolist() == Z[5:8].tolist()
    os.truncate(tmp_path / "z.npy", 5000)
    for read in (lambda: rows.block(0, 9), lambda: rows.take(np.arange(9))):
        with pytest.raises(RowError, match=r"z\.npy has become shorter since it was opened"):
            read()


class Interrupted(MemmapRows):
    """Ctrl-C, while a compiled program waits for rows."""

    def block(self, start: int, stop: int) -> Any:
        if start:
            raise KeyboardInterrupt
        return super().block(start, stop)


def test_ctrl_c_while_rows_are_checked_is_no_error_of_jax(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        streamed_model(Interrupted((Z, T)), GOLD, ridge=0.1, block=25)
    assert not caplog.records


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(RowError, match=f"all arrays must have as many rows, got {ROWS - 1} and {ROWS}"):
        MemmapRows((Z, T[:-1]))


FIXED = ProxBiO(AID(GradientDescent(0.02, steps=2), CG(2)), step_size=5.0)


class Broken(MemmapRows):
    """A disk that fails after some blocks, or a block that is too short."""

    def __init__(self, blocks: int, error: Exception | None):
        super().__init__((Z, T))
        self.left, self.error = blocks, error

    def block(self, start: int, stop: int) -> Any:
        self.left -= 1
        if self.left > 0:
            return super().block(start, stop)
        if self.error is not None:
            raise self.error
        return super().block(start, stop - 1)


@pytest.mark.parametrize("blocks", [5, 60])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), None], ids=["disk", "short"])
def test_what_fails_while_rows_are_read_is_said_as_it_is(
    blocks: int, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    """When the problem is made, and in the middle of a run: not with a traceback of a compiled program."""
    said = "Input/output error" if error else r"must have the shape \(\d+, \d+\), got"

    def run() -> None:
        problem = streamed_model(Broken(blocks, error), GOLD, ridge=0.1, block=25)
        minimize(problem, jnp.zeros(ROWS), jnp.zeros((CLASSES, FEATURES)), FIXED, steps=5)

    with pytest.raises((OSError, RowError), match=said) as caught:
        run()
    assert "Traceback" not in str(caught.value)
    assert not caplog.records


@pytest.mark.parametrize("label", [CLASSES, 2**40])
def test_classes_that_y_does_not_have_are_named(label: int) -> None:
    """They would count as no class at all."""
    start = jnp.zeros(ROWS), jnp.zeros((CLASSES, FEATURES))
    gold = GOLD[0], np.where(np.arange(len(GOLD[1])) == 2, CLASSES, GOLD[1])
    odd = np.where(np.arange(ROWS) == 7, label, T.astype(np.int64))
    with pytest.raises(ValueError, match=r"train\[1\] has values outside of 0\.\.\d+ in 1 row\(s\): 7"):
        minimize(streamed_model(MemmapRows((Z, odd)), GOLD, ridge=0.1), *start, FIXED)
    with pytest.raises(ValueError, match=rf"held_out: targets must be classes 0\.\.{CLASSES - 1}, .* in row 2"):
        minimize(streamed_model(MemmapRows((Z, T)), gold, ridge=0.1), *start, FIXED)


def test_rows_that_cannot_be_used_are_named() -> None:
    bad = Z.astype(np.float16)
    bad[77, 2] = np.nan
    with pytest.raises(RowError, match=r"train\[0\] has NaN or infinite values in 1 row\(s\): 77"):
        streamed_model(MemmapRows((bad, T)), GOLD, ridge=0.1, block=10)
    with pytest.raises(RowError, match=r"train\[1\] has values outside of 0\.\..* in 1 row\(s\): 8"):
        streamed_model(MemmapRows((Z, np.where(np.arange(ROWS) == 8, -1, 0))), GOLD, ridge=0.1)


@pytest.mark.parametrize(
    ("train", "more", "said"),
    [
        (MemmapRows(Z), {}, r"blocks must be pairs \(features, targets\)"),
        (MemmapRows((Z, T.astype(float))), {}, "targets must be classes"),
        (MemmapRows((Z, T)), {"ridge": 0.0}, "ridge must be finite and > 0"),
        (MemmapRows((Z, T)), {"weights": jnp.sum}, "weights must return one weight for each entry of x"),
    ],
)
def test_arguments_are_checked(train: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        streamed_model(train, GOLD, **{"ridge": 0.1} | more)


def test_x_must_have_an_entry_for_each_row() -> None:
    problem = hyper_cleaning(MemmapRows((Z, T)), GOLD, RIDGE)
    with pytest.raises(ValueError, match="x must have one entry for each of the 103 training rows"):
        minimize(problem, jnp.zeros(7), jnp.zeros((CLASSES, FEATURES)))
    with pytest.raises(ValueError, match="layout must not be given for rows on the host"):
        hyper_cleaning(MemmapRows((Z, T)), GOLD, RIDGE, layout="both")


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.hours
def test_forty_million_rows_of_a_file_in_two_gigabytes() -> None:
    """8 GB on disk; memory beside ten vectors like x, and a pass of any kind in at most the time of two NumPy sums."""
    script = Path(__file__).parents[1] / "benchmarks" / "out_of_core.py"
    command = [sys.executable, script, "--rows", "40000000", "--steps", "1"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told["megabytes of memory"] - 10 * told["a vector like x, megabytes"] < 2000
    for name in ("gradient", "Hessian product", "cross product"):
        assert told[f"speed of a {name}, in NumPy sums"]["median"] > 0.5
