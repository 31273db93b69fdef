"""The rows to clean: checked, and padded to the sizes of compiled programs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from proxbi.cleaning.method.drawing import FIT
from proxbi.cleaning.method.label_noise import Given


class Table(NamedTuple):
    """The arguments of the user, in the types that the method computes with."""

    features: Float[np.ndarray, "rows columns"]
    labels: Int[np.ndarray, " rows"]
    trusted: Bool[np.ndarray, " rows"]
    groups: Int[np.ndarray, " rows"]
    """All 0 if there are no groups."""
    repeats: Float[np.ndarray, " rows"]
    """Sample weights, 1 on average. Rows of weight 0 are judged but never fitted."""
    classes: int
    pred_probs: Float[np.ndarray, "rows classes"] | None = None
    """Probabilities of a model of the user's own; NaN for rows without any."""
    votes: Int[np.ndarray, "rows annotators"] | None = None
    """The votes of several annotators: a class, or -1 for no vote. The labels are then those of the votes."""

    @property
    def voted(self) -> Bool[np.ndarray, " rows"]:
        """The rows that have a label: all, or with votes those with a vote."""
        return np.ones(len(self.labels), bool) if self.votes is None else (self.votes >= 0).any(axis=1) | self.trusted

    before: Int[np.ndarray, " rows"] | None = None
    """The label of a row before a person decided it; -1 for rows that nobody decided."""

    @property
    def decided(self) -> Bool[np.ndarray, " rows"]:
        """Trusted rows that were not drawn at random: a person decided them, perhaps because of their label."""
        return np.zeros(len(self.labels), bool) if self.before is None else self.before >= 0

    @property
    def judges(self) -> Int[np.ndarray, " judges"]:
        """Trusted rows that represent all others. Decided rows do not: they were picked."""
        return np.flatnonzero(self.trusted & ~self.decided)

    group_count: int = 1
    """The number of groups."""
    learn_from: int = FIT
    """The maximal number of rows that are fitted."""
    whole: int = 0
    """If this is a sample: the number of rows of the table that it was drawn from."""

    @property
    def size(self) -> int:
        """The number of rows of the whole table."""
        return self.whole or len(self.labels)

    def take(self, rows: Int[np.ndarray, " some"] | slice) -> "Table":
        """Some of the rows, as a sample."""
        each: dict[str, Any] = {
            name: values[rows] for name, values in self._asdict().items() if isinstance(values, np.ndarray)
        }
        return self._replace(**each, whole=self.size)

    @property
    def noisy(self) -> Int[np.ndarray, " noisy"]:
        """The rows that are not trusted and may be fitted."""
        return np.flatnonzero(~self.trusted & (self.repeats > 0))

    @property
    def gold(self) -> Int[np.ndarray, " gold"]:
        """The rows that are trusted."""
        return np.flatnonzero(self.trusted)

    def given(self, rows: Int[np.ndarray, " rows"], size: int) -> Given:
        """Labels and groups of these rows, padded to a size."""
        return Given(padded(self.labels[rows], size), padded(self.groups[rows], size))


def checked(
    features: Any,
    labels: Any,
    classes: int,
    trusted: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    pred_probs: Any = None,
    votes: Any = None,
    before: Any = None,
) -> Table:
    """The table, or an error that names the argument."""
    matrix = np.asarray(features, np.float32)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"features must be a matrix with rows and columns, got shape {matrix.shape}.")
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(f"features must be finite, and row {row}, column {column} is not.")
    rows = len(matrix)
    gold = np.zeros(rows, bool) if trusted is None else _vector("trusted", trusted, rows, "b")
    if gold.all():
        raise ValueError("trusted is true for all rows: there is nothing to clean.")
    repeats = _repeats(sample_weight, rows)
    if not repeats[~gold].any():
        raise ValueError("sample_weight is zero for all rows that are not trusted.")
    source = np.zeros(rows, np.int32) if groups is None else _vector("groups", groups, rows, "iu")
    if source.min() < 0:
        raise ValueError(f"groups must be indices 0, 1, ..., got {source.min()}.")
    table = Table(
        matrix,
        _labels(labels, rows, classes),
        gold,
        source.astype(np.int32),
        repeats,
        int(classes),
        None if pred_probs is None else _chances(pred_probs, rows, int(classes)),
        None if votes is None else _votes(votes, rows, int(classes)),
        None if before is None else _before(before, gold, rows, int(classes)),
        int(source.max()) + 1,
    )
    return table._replace(repeats=np.where(table.voted, repeats, np.float32(0)))


def bucket(rows: int) -> int:
    """The size to pad so many rows to: a power of two, or from 1024 on one of seven sizes between two of these.

    Each size is compiled separately, so there should be few.

    >>> [bucket(rows) for rows in (3, 70, 1000, 1100, 25_000)]
    [64, 128, 1024, 1152, 26624]
    """
    power = max(64, 1 << (max(1, rows) - 1).bit_length())
    step = power // 16 if power > 1024 else power
    return -(-rows // step) * step if rows else power


def padded(values: np.ndarray, size: int) -> Array:
    """The values, padded with zeros to this size."""
    filled = np.zeros((size, *values.shape[1:]), values.dtype)
    filled[: len(values)] = values
    return jnp.asarray(filled)


def _labels(labels: Any, rows: int, classes: int) -> Int[np.ndarray, " rows"]:
    given = _vector("labels", labels, rows, "iu")
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}.")
    if given.min() < 0 or given.max() >= classes:
        raise ValueError(f"labels must be in 0..{classes - 1}, got {given.min()}..{given.max()}.")
    return given.astype(np.int32)


def _before(before: Any, trusted: Bool[np.ndarray, " rows"], rows: int, classes: int) -> Int[np.ndarray, " rows"]:
    given = _vector("before", before, rows, "iu").astype(np.int32)
    if given.min() < -1 or given.max() >= classes:
        raise ValueError(f"before must be in -1..{classes - 1}, got {given.min()}..{given.max()}.")
    if np.any(given[~trusted] >= 0):
        row = np.flatnonzero(~trusted & (given >= 0))[0]
        raise ValueError(f"before has a label for row {row}, which is not trusted: but every decided row is.")
    return given


def _chances(pred_probs: Any, rows: int, classes: int) -> Float[np.ndarray, "rows classes"]:
    chances = np.asarray(pred_probs, np.float64)
    if chances.shape != (rows, classes):
        raise ValueError(f"pred_probs must have shape ({rows}, {classes}), rows by classes, got {chances.shape}.")
    known = ~np.isnan(chances).any(axis=1)
    if not np.all((chances[known] >= 0) & (chances[known] <= 1)):
        raise ValueError("pred_probs must be probabilities, between 0 and 1.")
    totals = chances.sum(axis=1, keepdims=True)
    if np.any(totals[known] <= 0):
        raise ValueError(f"pred_probs is 0 for all classes in row {np.flatnonzero(known & (totals[:, 0] <= 0))[0]}.")
    return chances / totals


def _votes(votes: Any, rows: int, classes: int) -> Int[np.ndarray, "rows annotators"]:
    given = np.asarray(votes)
    if given.ndim != 2 or len(given) != rows or given.dtype.kind not in "iu":
        raise ValueError(
            f"votes must be integers, {rows} rows by annotators, got an array of {given.dtype} of shape {given.shape}."
        )
    if given.min(initial=0) < -1 or given.max(initial=-1) >= classes:
        raise ValueError(f"votes must be in -1..{classes - 1}, got {given.min()}..{given.max()}.")
    if not np.any(given >= 0):
        raise ValueError("votes has no vote.")
    return given.astype(np.int64)


def _repeats(sample_weight: Any, rows: int) -> Float[np.ndarray, " rows"]:
    if sample_weight is None:
        return np.ones(rows, np.float32)
    weight = _vector("sample_weight", sample_weight, rows, "iufb").astype(np.float64)
    if not np.isfinite(weight).all() or weight.min() < 0 or weight.max() <= 0:
        raise ValueError("sample_weight must be finite, not negative, and not all zero.")
    return (weight / weight[weight > 0].mean()).astype(np.float32)


def _vector(name: str, values: Any, rows: int, kinds: str) -> np.ndarray:
    vector = np.asarray(values)
    if vector.shape != (rows,):
        raise ValueError(f"{name} must have one value for each of the {rows} rows, got shape {vector.shape}.")
    if vector.dtype.kind not in kinds:
        expected = {"b": "truth values", "iu": "integers"}.get(kinds, "numbers")
        raise TypeError(f"{name} must be {expected}, got {vector.dtype}.")
    return vector
