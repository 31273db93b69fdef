"""A table or an array -> numbers on which distances make sense."""

import os

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from proxbi.cleaning.inputs.features import BOUND, MOST_CATEGORIES, QUARTILE_ROWS, Encoder
from proxbi.cleaning.inputs.prepare import prepare


def encoded(table):
    return Encoder().fit(table).transform(table)


def table(seed=0, rows=200):
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(18, 90, rows),
            "income": draw.lognormal(10, 1, rows),
            "city": draw.choice(["Bern", "Rom", "Wien"], rows),
            "member": draw.random(rows) < 0.5,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 1000, rows), unit="D"),
        }
    )


def test_numbers_have_the_median_0_and_the_quartiles_of_a_normal_distribution():
    numbers = encoded(table(rows=2000)[["age", "income", "since"]])
    assert numbers.dtype == np.float32
    low, middle, high = np.quantile(numbers, [0.25, 0.5, 0.75], axis=0)
    np.testing.assert_allclose(middle, 0, atol=1e-2)
    np.testing.assert_allclose(high - low, 1.349, rtol=0.05)
    assert np.abs(numbers).max() < 4


def test_one_huge_number_is_at_the_bound_and_not_at_the_median():
    column = np.arange(100.0)[:, None]
    column[[7, 8]] = [[1e300], [-1e300]]
    np.testing.assert_allclose(encoded(column)[[7, 8], 0], [BOUND, -BOUND], rtol=1e-6)


def test_quartiles_of_many_rows_are_those_of_all_even_where_rows_take_turns():
    """Every fourth row is 1,000 times larger: those that are drawn must not be these, or the others, only."""
    rows = 4 * QUARTILE_ROWS
    column = np.random.default_rng(0).normal(size=(rows, 1)) * np.where(np.arange(rows) % 4 == 0, 1000.0, 1.0)[:, None]
    column[:, 0] += 5
    z = encoded(column)[:, 0].astype(float)
    unbounded = z / np.sqrt(1 - (z / BOUND) ** 2)
    low, middle, high = np.quantile(unbounded, [0.25, 0.5, 0.75])
    np.testing.assert_allclose([middle, high - low], [0, 1.349], atol=0.03)


def test_the_order_of_numbers_is_kept_whatever_their_tails():
    heavy = np.exp(4 * np.random.default_rng(0).normal(size=(500, 1)))
    found = encoded(heavy)
    assert np.array_equal(np.argsort(found[:, 0]), np.argsort(heavy[:, 0]))
    assert found.std() > 0.7


def test_a_category_is_one_column_for_each_value():
    given = table()
    columns = encoded(given[["city"]])
    assert columns.shape[1] == 3
    assert set(np.unique(columns)) == {0, 1}
    assert (columns.sum(axis=1) == 1).all()
    same = given["city"].to_numpy()[:, None] == given["city"].to_numpy()[None]
    distance = ((columns[:, None] - columns[None]) ** 2).sum(axis=2)
    assert np.array_equal(distance == 0, same)


@pytest.mark.parametrize("dtype", ["category", "str", "object"])
def test_a_category_is_one_whatever_its_type(dtype):
    column = pd.Series(["a", "b", "a", None, "b", None])
    np.testing.assert_array_equal(encoded(column.astype(dtype).to_frame("c")), encoded(column.to_frame("c")))


@pytest.mark.parametrize("gap", [None, np.nan])
def test_missing_values_get_the_median_and_a_flag(gap):
    frame = pd.DataFrame({"a": [1.0, 2.0, gap, 3.0, 100.0]}, dtype=float)
    value, flag = encoded(frame).T
    assert flag.tolist() == [0, 0, 1, 0, 0]
    assert value[2] == value[1]
    assert np.isfinite(value).all()


def test_a_missing_category_is_a_value_of_its_own():
    columns = encoded(pd.DataFrame({"c": ["a", "b", None, "a", "b", None]}))
    assert columns.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]] * 2


def test_a_gap_that_the_fit_has_not_seen_is_filled():
    encoder = Encoder().fit(pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "c": ["x", "y", "x", "y"]}))
    found = encoder.transform(pd.DataFrame({"a": [np.nan, 2.0], "c": ["new", None]}))
    assert np.isfinite(found).all()
    assert found[0].tolist() == [0, 0, 0]
    assert (found[1, 1:] == 0).all()


def test_rare_values_share_a_column():
    values = [f"v{i}" for i in range(60) for _ in range(2 + i)]
    encoder = Encoder().fit(pd.DataFrame({"c": values}))
    assert encoder.width == MOST_CATEGORIES + 1
    assert "60 different values" in encoder.warnings[0]
    rare, frequent = encoder.transform(pd.DataFrame({"c": ["v0", "v59"]}))
    assert rare[-1] == 1
    assert frequent[0] == 1
    assert rare.sum() == frequent.sum() == 1


def test_a_column_of_names_is_left_out_with_a_warning():
    frame = table().assign(name=[f"person {i}" for i in range(200)])
    encoder = Encoder().fit(frame)
    assert encoder.width == Encoder().fit(table()).width
    assert "'name'" in encoder.warnings[0]


def test_numbers_spoiled_by_a_word_are_noticed():
    ages = [str(age) for age in range(40)] * 3 + ["?"]
    assert "because of '?'" in Encoder().fit(pd.DataFrame({"age": ages})).warnings[0]


def test_constant_columns_are_left_out_with_a_warning():
    frame = table().assign(country="CH", year=2020, empty=np.nan, nothing=pd.Series([None] * 200, dtype=object))
    encoder = Encoder().fit(frame)
    assert encoder.width == Encoder().fit(table()).width
    said = " ".join(encoder.warnings)
    assert all(name in said for name in ("'country'", "'year'", "'empty'"))
    assert "Column 'nothing' is constant and not used." in encoder.warnings
    with pytest.raises(ValueError, match="constant"):
        Encoder().fit(frame[["country", "year"]])


def test_a_column_that_is_there_or_not_says_so():
    assert encoded(pd.DataFrame({"visit": [1.0, np.nan, 1.0]})).tolist() == [[0], [1], [0]]


@pytest.mark.parametrize("place", [(3, 0), (150, 4)])
def test_an_infinite_value_is_named_by_row_and_column(place):
    X = np.random.default_rng(0).normal(size=(200, 5))
    X[place] = np.inf
    with pytest.raises(ValueError, match=rf"'{place[1]}'.* row {place[0]} "):
        Encoder().fit(X)
    good = np.nan_to_num(X, posinf=0.0)
    with pytest.raises(ValueError, match="infinite"):
        Encoder().fit(good).transform(X)


def test_very_large_numbers_do_not_overflow():
    large = np.array([[1e300], [-1e300], [5e299], [0.0]])
    np.testing.assert_allclose(encoded(large), encoded(large / 1e300), rtol=1e-6)


def pixels():
    return load_digits().data


@pytest.mark.parametrize(
    "X",
    [
        pixels(),
        pixels().astype(np.uint8)[:, :8],
        pixels().reshape(-1, 8, 8) * 1e-3,
        pd.DataFrame(pixels()).rename(columns=str),
        pd.DataFrame({"embedding": list(pixels())}),
    ],
    ids=["floats", "bytes", "images", "frame", "vectors"],
)
def test_columns_of_one_scale_keep_their_ratios(X):
    flat = np.stack(X["embedding"]) if "embedding" in X else np.asarray(X).reshape(len(X), -1)
    varying = flat.std(axis=0) > 0
    found = encoded(X)
    assert found.shape[1] == varying.sum()
    ratio = found.std(axis=0) / flat[:, varying].std(axis=0)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)
    np.testing.assert_allclose(np.mean(found.var(axis=0)), 1, rtol=1e-3)


def test_columns_of_many_scales_do_not():
    X = np.random.default_rng(0).normal(size=(300, 20)) * 10.0 ** np.arange(20)
    np.testing.assert_allclose(encoded(X).std(axis=0), 1, rtol=0.2)


def test_vectors_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"'v'.*row 1"):
        Encoder().fit(pd.DataFrame({"v": [np.zeros(3), np.zeros(2)]}))


def test_text_where_the_fit_had_numbers_is_refused():
    encoder = Encoder().fit(pd.DataFrame({"a": [1.0, 2.0]}))
    with pytest.raises(ValueError, match="'a'"):
        encoder.transform(pd.DataFrame({"a": ["x", "y"]}))


@given(st.lists(st.integers(0, 3), min_size=30, max_size=30).filter(lambda counts: sum(map(bool, counts)) > 5))
def test_a_weight_counts_rows(counts):
    frame = table(rows=30)
    frame.loc[::7, "age"] = np.nan
    repeated = frame.loc[np.repeat(np.arange(30), counts)]
    by_weight = Encoder().fit(frame, np.array(counts, float)).transform(frame)
    np.testing.assert_allclose(by_weight, Encoder().fit(repeated).transform(frame), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "int8", "float32"])
def test_nullable_and_small_types_are_numbers(dtype):
    column = pd.Series([1, 0, 1, 1], dtype=dtype)
    np.testing.assert_array_equal(encoded(column.to_frame("a")), encoded(np.array([[1.0], [0], [1], [1]])))


def test_time_zones_and_durations_are_numbers():
    when = pd.date_range("2024-01-01", periods=4, tz="Europe/Zurich")
    frame = pd.DataFrame({"when": when, "took": pd.to_timedelta([1, 2, 3, 4], unit="h")})
    first, second = encoded(frame).T
    np.testing.assert_allclose(first, second, atol=1e-5)


# === What tables may have in them =====================================================================================


@pytest.mark.parametrize("kind", ["date objects", "text", "text with times", "timestamps"])
def test_dates_count_as_seconds_however_they_are_stored(kind):
    day = pd.Series(pd.Timestamp("2024-01-31") + pd.to_timedelta(np.arange(50), unit="D"))
    column = {
        "date objects": day.dt.date,
        "text": day.dt.strftime("%Y-%m-%d"),
        "text with times": day.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "timestamps": day,
    }[kind]
    np.testing.assert_allclose(encoded(pd.DataFrame({"day": column})), encoded(np.arange(50.0)[:, None]), atol=1e-6)
    gaps = pd.DataFrame({"day": column.where(np.arange(50) != 7)})
    assert encoded(gaps)[7].tolist()[1:] == [1.0]


@pytest.mark.parametrize("values", [["03/04/2024", "05/04/2024"], ["2024-13-45", "2024-01-01"]])
def test_dates_that_could_be_others_or_are_none_stay_text(values):
    column = pd.Series(values * 20)
    assert encoded(pd.DataFrame({"day": column})).shape == (40, 2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([{"a": 1}, {"a": 2}], r"Column 'v' must have single values or lists of numbers, and has \{'a': 1\}"),
        ([["a"], ["b"]], r"Column 'v' must have lists of numbers, and has \['a'\] in row 0"),
        ([[[1, 2], [3, 4]], [[1, 2], [3, 4]]], "Column 'v' must have lists of numbers"),
        ([[1, 2], [1]], "Column 'v' must have lists of one length, got 2 numbers in the first and 1 in row 1"),
    ],
)
def test_columns_that_cannot_be_features_are_named(values, said):
    with pytest.raises(ValueError, match=said):
        encoded(pd.DataFrame({"v": values, "a": [1.0, 2.0]}))


@pytest.mark.parametrize(("first", "dtype"), [(10**24, object), (2**63, np.uint64), (-(2**60), "Int64")])
def test_numbers_too_long_to_be_told_apart_are_not_called_constant(first, dtype):
    long = pd.Series([first + i for i in range(20)], dtype=dtype)
    encoder = Encoder().fit(pd.DataFrame({"key": long, "a": np.arange(20.0)}))
    assert encoder.warnings == ["Column 'key' is not used: its numbers are alike in their first 16 digits, as ids are."]


@pytest.mark.parametrize("kind", ["date", "datetime64[s]", "datetime64[us]", "str"])
def test_dates_that_nanoseconds_do_not_reach_are_dates(kind):
    """9999-12-31 stands for "never" in many tables."""
    days = np.array(["2020-01-01", "2021-01-01", "2022-01-01", "9999-12-31", "NaT", "0001-01-01"], "datetime64[D]")
    given = days.astype(object) if kind == "date" else days.astype(kind)
    column = pd.Series(np.where(np.isnat(days), None, given) if kind in ("date", "str") else given)
    encoder = Encoder().fit(pd.DataFrame({"until": column}))
    value, missing = encoder.transform(pd.DataFrame({"until": column})).T
    assert missing.tolist() == [0, 0, 0, 0, 1, 0]
    assert np.array_equal(np.argsort(np.delete(value, 4)), [4, 0, 1, 2, 3])
    assert encoder.uses[0].kind == "number"


def test_numbers_too_large_for_differences_are_named():
    with pytest.raises(ValueError, match=r"Column 'a' of the features is too large in row 0 .*: 1e\+308\."):
        encoded(pd.DataFrame({"a": [1e308, -1e308] * 4, "b": np.arange(8.0)}))


def test_bytes_that_are_not_text_are_named():
    frame = pd.DataFrame({"a": np.arange(4.0), "raw": [b"x", None, b"\x00\xff", b"x"]})
    with pytest.raises(ValueError, match=r"Column 'raw' has bytes that are not text in row 2 \(the first is 0\)\."):
        Encoder().fit(frame)


# === What is checked before the work ==================================================================================

X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trusted": np.array([True, None] * 30, object)}, r"trusted has no value in row 1 \(the first is 0\)"),
        ({"trusted": np.array(["a", 1] * 30, object)}, "trusted must be a truth value for each of the 60 rows"),
        (
            {"sample_weight": np.r_[1e300, np.ones(59)]},
            r"sample_weight must be at most 1e\+09 times its median, 1, got",
        ),
        (
            {"sample_weight": np.r_[np.ones(59), -1]},
            "sample_weight must be finite and not negative, got -1.0 in row 59",
        ),
        ({"pred_probs": np.ones((60, 2)) / 2}, r"pred_probs must have a row .* got shape \(60, 2\)"),
        ({"pred_probs": np.ones((60, 3))}, "pred_probs must contain probabilities that sum to 1"),
    ],
)
def test_wrong_inputs_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        prepare(X, Y, **given)


def test_a_class_without_a_trusted_row_is_a_warning():
    inputs = prepare(X, Y, trusted=(np.arange(60) < 20) & (Y != 2))
    assert inputs.warnings == [
        "No trusted row has the class 2: labels of this kind are judged by untrusted rows alone."
    ]
    assert inputs.trusted.sum() == 14


def test_trusted_rows_that_are_copies_are_a_warning_and_those_that_are_alike_by_chance_are_not():
    gold = np.arange(10)
    copied = prepare(X, Y, X_val=X[gold], y_val=Y[gold])
    assert any(
        "10 of the 10 trusted rows given apart are among the rows to be judged" in each for each in copied.warnings
    )
    assert prepare(X[10:], Y[10:], X_val=X[gold], y_val=Y[gold]).warnings == []
    coarse = np.sign(X)
    assert prepare(coarse[10:], Y[10:], X_val=coarse[gold], y_val=Y[gold]).warnings == []


def test_copies_of_rows_with_their_labels_are_a_warning_and_rows_that_are_alike_by_chance_are_not():
    twice = prepare(np.tile(X, (2, 1)), np.tile(Y, 2))
    assert any("60 of 120 rows are exact copies of others, labels included" in each for each in twice.warnings)
    assert prepare(np.concatenate([X, X[:2]]), np.concatenate([Y, Y[:2]])).warnings == []  # a few of 62
    assert prepare(np.sign(X), Y).warnings == []
    assert prepare(np.tile(X, (2, 1)), np.concatenate([Y, (Y + 1) % 3])).warnings == []  # labelled independently


def test_probabilities_are_those_of_all_rows():
    chances = np.eye(3)[Y]
    inputs = prepare(X[10:], Y[10:], X_val=X[:10], y_val=Y[:10], pred_probs=chances[10:])
    np.testing.assert_array_equal(inputs.pred_probs[:50], chances[10:])
    assert np.isnan(inputs.pred_probs[50:]).all()


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_after_jax_has_started_is_told_so():
    """It would wait for ever."""
    jnp.zeros(3).block_until_ready()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            prepare(X, Y)
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert 'multiprocessing.get_context("spawn")' in said.read()
    os.waitpid(child, 0)
    assert prepare(X, Y).rows == 60  # here it still works
