"""The checks of what people give the cleaner.

Each error is one sentence: which argument (or file, row and column), what was expected, what was got.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

HEAVIEST = 1e9
"""The largest sample weight, in medians: next to a heavier row no other has digits left in the normal equations."""
ROUNDING = 0.01
"""How far the probabilities of a row may be from summing to 1: ten of them rounded to three digits are."""

Where = Callable[[int], str]
"""How a message says which row it means."""


def by_index(row: int) -> str:
    """The row as Python counts."""
    return f"row {row} (the first is 0)"


class Words(NamedTuple):
    """How the messages call the inputs and their rows."""

    rows: str = "X"
    labels: str = "y"
    trusted: str = "trusted"
    apart: str = "y_val"
    groups: str = "groups"
    where: Where = by_index
    where_apart: Where = by_index


def require_labels(y: Any, name: str, where: Where = by_index) -> np.ndarray:
    """The labels as an array, or an error that says where there is none."""
    values = np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"{name} must have one label for each row, got shape {values.shape}.")
    missing = _missing(values)
    if missing.size:
        raise ValueError(f"{name} has no label in {where(missing[0])}.")
    if values.dtype.kind == "O":
        for row, value in enumerate(values):
            if isinstance(value, list | tuple | dict | set | np.ndarray):
                raise ValueError(f"{name} must have one label for each row, and has a collection in {where(row)}.")
    return values


def class_indices(y: Any, words: Words, known: np.ndarray | None = None) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
    """The classes in order, and for each row which it is; `known` are all classes, where `y` may lack some."""
    values = require_labels(y, words.labels, words.where)
    try:
        classes, labels = np.unique(values, return_inverse=True)
        if known is not None:
            classes, labels = known, np.searchsorted(known, classes)[labels]
    except TypeError as error:
        raise ValueError(f"{words.labels} mixes kinds of labels: {error}.") from error
    if len(classes) < 2:
        raise ValueError(f"{words.labels} has one class only, {plain(classes[0])!r}; cleaning needs at least two.")
    return classes, labels.astype(np.int64)


def trusted_mask(trusted: Any, rows: int, words: Words) -> Bool[np.ndarray, " rows"]:
    """A mask from truth values for all rows, or from the indices of the trusted ones."""
    given = np.asarray(trusted)
    missing = _missing(given) if given.ndim == 1 else np.array([], np.int64)
    if missing.size:
        raise ValueError(f"{words.trusted} has no value in {words.where(missing[0])}.")
    if given.shape == (rows,) and _are_truth_values(given):
        mask = given.astype(bool)
    elif given.ndim == 1 and given.dtype.kind in "iu":
        if given.size and (given.min() < 0 or given.max() >= rows):
            raise ValueError(f"{words.trusted} contains a row index outside 0..{rows - 1}.")
        mask = np.isin(np.arange(rows), given)
    else:
        raise ValueError(
            f"{words.trusted} must be a truth value for each of the {rows} rows, or indices of rows, got an array of "
            f"{given.dtype} of shape {given.shape}."
        )
    if not mask.any():
        raise ValueError(f"{words.trusted} marks no row.")
    if mask.all():
        raise ValueError(f"{words.trusted} marks all rows: there is nothing to clean.")
    return mask


def group_indices(
    groups: Any, rows: int, words: Words, known: list[str] | None = None
) -> tuple[list[str], Int[np.ndarray, " rows"]]:
    """The names of the groups in order, and for each row which it is; `known` are all names, where `groups` may lack
    some.
    """
    values = np.asarray(groups)
    if values.shape != (rows,):
        raise ValueError(f"{words.groups} must have one value for each of the {rows} rows, got shape {values.shape}.")
    texts = values.astype(object)
    texts[_missing(values)] = "(missing)"
    names, group_of = np.unique([str(plain(text)) for text in texts], return_inverse=True)
    if known is not None:
        return known, np.searchsorted(np.array(known), names)[group_of]
    return [str(name) for name in names], group_of


def checked_weights(sample_weight: Any, labels: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """How much each row counts."""
    weight, rows = np.asarray(sample_weight, np.float64), len(labels)
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight must have one value for each of the {rows} rows, got shape {weight.shape}.")
    wrong = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if wrong.size:
        raise ValueError(
            f"sample_weight must be finite and not negative, got {weight[wrong[0]]} in {by_index(wrong[0])}."
        )
    counted = weight[weight > 0]
    if not counted.size:
        raise ValueError("sample_weight is zero for all rows: at least one weight must not be zero.")
    if counted.max() > HEAVIEST * np.median(counted):
        raise ValueError(
            f"sample_weight must be at most {HEAVIEST:g} times its median, {np.median(counted):g}, got "
            f"{counted.max():g} in {by_index(int(weight.argmax()))}."
        )
    if len(np.unique(labels[weight > 0])) < 2:
        raise ValueError("y has one class only among the rows whose sample_weight is not zero.")
    return weight


def checked_probabilities(
    given: Any, rows: int, classes: np.ndarray, name: str = "pred_probs", where: Where = by_index
) -> Float[np.ndarray, "rows classes"]:
    """The probability of each class for each row, each row summing to 1. The columns are in the order of the sorted
    classes, or, in a data frame, named by class.
    """
    names = [str(plain(each)) for each in classes]
    ordered = _by_class(given, names, name)
    try:
        values = np.asarray(ordered, np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must contain numbers only: {error}.") from error
    if values.shape != (rows, len(names)):
        raise ValueError(
            f"{name} must have a row for each of the {rows} rows and a column for each of the {len(names)} classes, "
            f"got shape {values.shape}."
        )
    wrong = np.argwhere(~((values >= 0) & (values <= 1)))  # NaN is wrong too
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{name} must contain probabilities in [0, 1], got {values[row, column]} in {where(row)}, in the column of "
            f"class {names[column]!r}."
        )
    sums = values.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > ROUNDING)
    if off.size:
        raise ValueError(
            f"{name} must contain probabilities that sum to 1 in each row, got {sums[off[0]]:.4g} in {where(off[0])}."
        )
    return values / sums[:, None]


def some(names: Sequence[object]) -> str:
    """The first few of the names."""
    return ", ".join(repr(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")


def plain(value: Any) -> Any:
    """A value of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _by_class(given: Any, names: list[str], name: str) -> Any:
    """The columns of a data frame that are named by class, in the order of the classes; anything else as it is."""
    if not hasattr(given, "columns"):
        return given
    called = [str(plain(column)) for column in given.columns]
    if not set(called) & set(names):
        return given
    lacking, unknown = ([each for each in a if each not in b] for a, b in ((names, called), (called, names)))
    if lacking or unknown or len(called) > len(names):
        wrong = f"has none for {some(lacking)}" if lacking else f"has also {some(unknown) or 'one twice'}"
        raise ValueError(f"{name} must have one column for each class, and {wrong}.")
    return given.iloc[:, [called.index(each) for each in names]]


def _are_truth_values(given: np.ndarray) -> bool:
    if given.dtype.kind == "O":
        return all(isinstance(value, bool | int | np.bool_ | np.integer) and value in (0, 1) for value in given)
    return given.dtype.kind == "b" or (given.dtype.kind in "iuf" and bool(np.isin(given, (0, 1)).all()))


def _missing(values: np.ndarray) -> Int[np.ndarray, " missing"]:
    """The indices of None, NaN and infinity."""
    if values.dtype.kind in "fc":
        return np.flatnonzero(~np.isfinite(values))
    if values.dtype.kind != "O":
        return np.array([], np.int64)
    import pandas as pd

    return np.flatnonzero(pd.isna(values))
