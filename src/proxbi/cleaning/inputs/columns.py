"""The columns of a table or an array, and their values as numbers or as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from proxbi.cleaning.inputs.checks import Where, by_index

if TYPE_CHECKING:
    import pandas as pd

ISO_DATE = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
"""Dates that mean the same everywhere. Others stay text: 03/04/2024 is in March or in April."""


LARGEST = float(np.finfo(np.float64).max) / 4
"""Differences of two numbers up to it, and their sums, are finite."""


class Column(NamedTuple):
    """One column as given: `block` names the columns that may share a scale (None: a column of categories)."""

    name: str
    block: str | None
    values: Any


def columns_of(table: "np.ndarray | pd.DataFrame", where: Where = by_index) -> Iterator[Column]:
    """The columns of a data frame, or of an array flattened to rows; a column of vectors as one for each number."""
    if isinstance(table, np.ndarray):
        flat = table.reshape(len(table), -1)
        yield from (Column(str(place), "", flat[:, place]) for place in range(flat.shape[1]))
        return
    for place, name in enumerate(table.columns):
        values = table.iloc[:, place]
        if _is_vector(str(name), values):
            matrix = stacked(str(name), values, where)
            yield from (Column(f"{name}[{i}]", str(name), matrix[:, i]) for i in range(matrix.shape[1]))
        else:
            yield Column(str(name), "" if _is_numeric(values) else None, values)


def _is_numeric(values: "pd.Series") -> bool:
    from pandas.api import types

    if _is_number(values) or types.is_datetime64_any_dtype(values.dtype):
        return True
    numeric = {"integer", "floating", "mixed-integer-float", "decimal"}
    return types.infer_dtype(values, skipna=True) in numeric or _instants(values) is not None


def _is_number(values: "pd.Series") -> bool:
    """By the type of the column."""
    from pandas.api import types

    known = (types.is_numeric_dtype, types.is_bool_dtype, types.is_timedelta64_dtype)
    return any(is_of(values.dtype) for is_of in known)


def _instants(values: "pd.Series") -> "pd.Series | None":
    """The instants that the values are, as such, as dates or as text; None if one of them is something else."""
    import pandas as pd
    from pandas.api import types

    known = values.dropna()
    kind = types.infer_dtype(known, skipna=True)
    if kind == "string":
        # The first value settles it for most columns of text, without a look at the others.
        if not all(known.iloc[:most].str.fullmatch(ISO_DATE).all() for most in (1, len(known))):
            return None
    elif kind not in ("date", "datetime", "datetime64"):
        return None
    instants = pd.to_datetime(values, utc=True, format="ISO8601", errors="coerce")
    return instants if instants.count() == len(known) else None


def _is_vector(name: str, values: "pd.Series") -> bool:
    first = next((value for value in values if value is not None), None) if values.dtype == object else None
    if isinstance(first, dict | set):
        raise ValueError(f"Column {name!r} must have single values or lists of numbers, and has {first!r}.")
    return isinstance(first, list | tuple | np.ndarray)


def stacked(name: str, values: "pd.Series", where: Where = by_index) -> Float[np.ndarray, "rows width"]:
    """A column of vectors as a matrix, a row of NaN where there is none."""
    width = next(len(value) for value in values if value is not None)
    matrix = np.full((len(values), width), np.nan)
    for row, value in enumerate(values):
        if isinstance(value, list | tuple | np.ndarray):
            if len(value) != width:
                raise ValueError(
                    f"Column {name!r} must have lists of one length, got {width} numbers in the first and {len(value)} "
                    f"in {where(row)}."
                )
            try:
                matrix[row] = value
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"Column {name!r} must have lists of numbers, and has {list(value)!r:.60} in {where(row)}."
                ) from error
    return matrix


def numbers(column: Column, where: Where = by_index) -> Float[np.ndarray, " rows"]:
    """The values as float64, NaN where missing; an infinite one is an error."""
    values = _floats(column)
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise ValueError(f"Column {column.name!r} of the features is infinite in {where(infinite[0])}.")
    huge = np.flatnonzero(np.abs(values) > LARGEST)
    if huge.size:
        row = huge[0]
        raise ValueError(f"Column {column.name!r} of the features is too large in {where(row)}: {values[row]:g}.")
    return values


def _floats(column: Column) -> Float[np.ndarray, " rows"]:
    values = column.values
    if isinstance(values, np.ndarray):
        return values.astype(np.float64)
    import pandas as pd
    from pandas.api import types

    if types.is_timedelta64_dtype(values.dtype):
        return values.dt.total_seconds().to_numpy(np.float64)
    instants = None if _is_number(values) else _instants(values)
    if instants is not None:
        # In the unit that they come in: nanoseconds end in 2262, and 9999-12-31 stands for "never" in many tables.
        moments = instants.dt.tz_convert(None).to_numpy()
        epoch = np.zeros(1, moments.dtype)
        return (moments - epoch) / np.timedelta64(1, "s")
    try:
        return pd.to_numeric(values).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise ValueError(f"Column {column.name!r} must have numbers only: {error}.") from error


def texts(column: Column, where: Where = by_index) -> tuple[np.ndarray, Bool[np.ndarray, " rows"]]:
    """The values as text, and where they are missing; bytes that are not text are refused."""
    missing = column.values.isna().to_numpy()
    try:
        return column.values.astype("str").to_numpy(dtype=object), missing
    except UnicodeDecodeError as error:
        row = next(row for row, value in enumerate(column.values) if not _is_text(value))
        raise ValueError(f"Column {column.name!r} has bytes that are not text in {where(row)}.") from error


def _is_text(value: Any) -> bool:
    if isinstance(value, bytes):
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
    return True
