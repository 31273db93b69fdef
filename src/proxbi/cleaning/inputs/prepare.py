"""What people give the cleaner -> what the method takes, with every check of it: one sentence names what is wrong."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.inputs.features import Encoder


class Words(NamedTuple):
    """How the messages call the inputs."""

    rows: str = "X"
    labels: str = "y"
    trusted: str = "trusted"
    apart: str = "y_val"
    groups: str = "groups"


@dataclass(frozen=True)
class Inputs:
    """The arguments of `clean`, over the rows of X and after them those of X_val, and how to read its answer."""

    features: Float[np.ndarray, "all_rows width"]
    labels: Int[np.ndarray, " all_rows"]
    classes: np.ndarray
    """The label that each index stands for."""
    trusted: Bool[np.ndarray, " all_rows"] | None
    groups: Int[np.ndarray, " all_rows"] | None
    group_names: list[str]
    weight: Float[np.ndarray, " all_rows"] | None
    """How much each row counts, whatever its label."""
    rows: int
    """How many of the rows are those of X."""
    encoder: Encoder
    warnings: list[str]


def prepare(
    X: Any,
    y: Any,
    *,
    X_val: Any = None,
    y_val: Any = None,
    trusted: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    words: Words | None = None,
) -> Inputs:
    """Encode and check. `X` and `X_val` are data frames or numeric arrays with the same columns; `trusted` marks rows
    of X (truth values, or places), `X_val, y_val` are trusted rows beside X.
    """
    words = words or Words()
    classes, labels = class_indices(y, words)
    mask = None if trusted is None else trusted_mask(trusted, len(labels), words)
    if y_val is not None:
        extra = _places(classes, y_val, words)
        labels = np.concatenate([labels, extra])
        mask = np.concatenate([np.zeros(len(y), bool) if mask is None else mask, np.ones(len(extra), bool)])
    if mask is not None:
        _check_trusted(mask, labels, classes, words)
    group_names, group_of = ([], None) if groups is None else _groups(groups, len(y), len(labels), words)
    weight = None if sample_weight is None else _weights(sample_weight, len(y), labels)
    encoder = Encoder().fit(X, None if weight is None else weight[: len(y)])
    features = encoder.transform(X)
    found = list(encoder.warnings)
    if X_val is not None:
        beside = encoder.transform(X_val)
        if looks_untransformed(features, beside):
            found.append(
                "X_val lies far from X, as when a pipeline transforms X but not X_val: use "
                'Pipeline(..., transform_input=["X_val"]) with metadata routing, or mark trusted rows of X by trusted=.'
            )
        features = np.concatenate([features, beside])
    return Inputs(features, labels, classes, mask, group_of, group_names, weight, len(y), encoder, found)


def require_labels(y: Any, name: str) -> np.ndarray:
    """The labels as an array, or an error that says where there is none."""
    values = np.asarray(y)
    missing = _missing(values)
    if missing.size:
        raise ValueError(f"{name} has no label in row {missing[0]} (the first is 0).")
    return values


def class_indices(y: Any, words: Words) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
    """The classes in order, and for each row which it is."""
    values = require_labels(y, words.labels)
    try:
        classes, labels = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"{words.labels} mixes kinds of labels: {error}.") from error
    if len(classes) < 2:
        raise ValueError(f"{words.labels} has one class only, {_plain(classes[0])!r}; cleaning needs at least two.")
    return classes, labels.astype(np.int64)


def trusted_mask(trusted: Any, rows: int, words: Words) -> Bool[np.ndarray, " rows"]:
    """A mask from truth values for all rows, or from the places of the trusted ones."""
    given = np.asarray(trusted)
    is_mask = given.shape == (rows,) and (given.dtype == bool or set(np.unique(given)) <= {0, 1})
    if is_mask:
        mask = given.astype(bool)
    elif given.ndim == 1 and given.dtype.kind in "iu":
        if given.size and (given.min() < 0 or given.max() >= rows):
            raise ValueError(f"{words.trusted} has a place outside of 0..{rows - 1}.")
        mask = np.isin(np.arange(rows), given)
    else:
        raise ValueError(
            f"{words.trusted} must be a truth value for each of the {rows} rows, or places of rows, got an array of "
            f"{given.dtype} of shape {given.shape}."
        )
    if not mask.any():
        raise ValueError(f"{words.trusted} marks no row.")
    if mask.all():
        raise ValueError(f"{words.trusted} marks all rows: there is nothing to clean.")
    return mask


def looks_untransformed(features: Float[np.ndarray, "rows width"], beside: Float[np.ndarray, "others width"]) -> bool:
    """Whether the rows beside are, on average, twice as far from the mean of the others as those themselves, or all in
    one spot.

    Mean squares over all columns together, so that columns which are rarely anything but 0 weigh little.
    """
    mean, variance = features.mean(axis=0), np.sum(features.var(axis=0))
    far = np.mean(np.sum((beside - mean) ** 2, axis=1)) > 4 * variance
    in_one_spot = len(beside) >= 10 and 25 * np.sum(beside.var(axis=0)) < variance
    return bool(far or in_one_spot)


def _places(classes: np.ndarray, y_val: Any, words: Words) -> Int[np.ndarray, " rows"]:
    values = require_labels(y_val, words.apart)
    place: dict[Hashable, int] = {label: index for index, label in enumerate(classes.tolist())}
    unknown = [label for label in values.tolist() if label not in place]
    if unknown:
        raise ValueError(f"{words.apart} has the label {unknown[0]!r}, which {words.labels} does not have.")
    return np.array([place[label] for label in values.tolist()], np.int64)


def _check_trusted(
    mask: Bool[np.ndarray, " rows"], labels: Int[np.ndarray, " rows"], classes: np.ndarray, words: Words
) -> None:
    lacking = np.setdiff1d(np.arange(len(classes)), labels[mask])
    if lacking.size:
        names = [_plain(classes[index]) for index in lacking]
        which = f"the class {names[0]!r}" if len(names) == 1 else f"{len(names)} classes, {_some(names)}"
        raise ValueError(f"The trusted rows have none of {which}: they need at least one row of each class.")


def _groups(groups: Any, rows: int, all_rows: int, words: Words) -> tuple[list[str], Int[np.ndarray, " all_rows"]]:
    """The names of the groups and for each row which it is; rows of X_val are a group of their own."""
    values = np.asarray(groups)
    if values.shape != (rows,):
        raise ValueError(f"{words.groups} must have one value for each of the {rows} rows, got shape {values.shape}.")
    texts = values.astype(object)
    texts[_missing(values)] = "(missing)"
    names, group_of = np.unique([str(_plain(text)) for text in texts], return_inverse=True)
    apart = all_rows - rows
    named = [str(name) for name in names] + (["(trusted rows given apart)"] if apart else [])
    return named, np.concatenate([group_of, np.full(apart, len(names))])


def _weights(sample_weight: Any, rows: int, labels: Int[np.ndarray, " all_rows"]) -> Float[np.ndarray, " all_rows"]:
    """The weights of all rows; those of X_val count 1."""
    weight = np.asarray(sample_weight, np.float64)
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight must have a value for each of the {rows} rows, got shape {weight.shape}.")
    if not np.all(np.isfinite(weight)) or np.any(weight < 0):
        raise ValueError("sample_weight must be finite and not negative.")
    if not np.any(weight):
        raise ValueError("sample_weight is zero for all rows: at least one weight must not be zero.")
    weight = np.concatenate([weight, np.ones(len(labels) - rows)])
    if len(np.unique(labels[weight > 0])) < 2:
        raise ValueError("y has one class only among the rows whose sample_weight is not zero.")
    return weight


def _missing(values: np.ndarray) -> Int[np.ndarray, " missing"]:
    """The places of None, NaN and infinity."""
    if values.dtype.kind in "fc":
        return np.flatnonzero(~np.isfinite(values))
    if values.dtype.kind != "O":
        return np.array([], np.int64)
    import pandas as pd

    return np.flatnonzero(pd.isna(values))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _some(names: Sequence[object]) -> str:
    return ", ".join(repr(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")
