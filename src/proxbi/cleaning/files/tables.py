"""A file of rows and the roles of its columns -> what the cleaner takes, and the cleaned rows -> a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from proxbi.cleaning.files.csv_file import Csv
from proxbi.cleaning.files.formats import Changes, Npz, Parquet, Source, read, write
from proxbi.cleaning.inputs.prepare import Words
from proxbi.cleaning.result import Cleaned

if TYPE_CHECKING:
    import pandas as pd

ADDED = ("proxbi_weight", "proxbi_issue", "proxbi_quality", "proxbi_suggested_label", "proxbi_trusted")
GIVEN = "proxbi_given_label"
YES, NO = {"1", "1.0", "true", "t", "yes", "y"}, {"0", "0.0", "false", "f", "no", "n", ""}


class Roles(NamedTuple):
    """Which column is what, and a second file of trusted rows."""

    label: str | None = None
    trusted_column: str | None = None
    trusted_file: Path | None = None
    group: str | None = None
    id: str | None = None
    drop: Sequence[str] = ()


@dataclass(frozen=True)
class Rows:
    """The rows of a file, for `prepare`, and the file."""

    source: Source
    label: str
    X: "pd.DataFrame | np.ndarray"
    y: np.ndarray
    trusted: Bool[np.ndarray, " rows"] | None
    groups: np.ndarray | None
    ids: list[Any] | None
    X_val: "pd.DataFrame | np.ndarray | None"
    y_val: np.ndarray | None
    words: Words

    def arguments(self) -> dict[str, Any]:
        """For `prepare`."""
        names = ("X", "y", "X_val", "y_val", "trusted", "groups", "words")
        return {name: getattr(self, name) for name in names}


def load(path: Path, roles: Roles) -> Rows:
    """Read the file and the one of trusted rows, and see that the columns are there."""
    text = [name for name in (roles.label, roles.group, roles.id) if name is not None]
    source = read(path, text)
    return _from_arrays(source, roles) if isinstance(source, Npz) else _from_table(source, roles)


def save(rows: Rows, cleaned: Cleaned, classes: np.ndarray, mode: str, path: Path) -> None:
    """Write all columns of the file and what was found; with `mode` "drop" without the flagged rows, with "relabel"
    with the suggested labels (those given are in `proxbi_given_label`).
    """
    n = len(rows.y)
    suggested = classes[cleaned.suggested[:n]]
    found = (cleaned.weight[:n], cleaned.issue[:n], cleaned.quality[:n], suggested, cleaned.trusted[:n])
    added = dict(zip(ADDED, found, strict=True))
    kept = ~cleaned.issue[:n] if mode == "drop" else np.ones(n, bool)
    if mode == "relabel":
        write(rows.source, Changes(added | {GIVEN: rows.y}, {rows.label: suggested}, kept), path)
    else:
        write(rows.source, Changes(added, {}, kept), path)


def _from_table(source: Csv | Parquet, roles: Roles) -> Rows:
    path, frame = source.path, source.frame
    if roles.label is None:
        raise ValueError(f"--label must name the column of {path} that has the labels.")
    wanted = [roles.label, roles.trusted_column, roles.group, roles.id, *roles.drop]
    _check_columns(source, [name for name in wanted if name is not None])
    if len(frame) == 0:
        raise ValueError(f"{path} has no rows.")
    _check_labels(path, roles.label, frame[roles.label])
    # A data frame's index, which Parquet files name and CSV files leave without a name, is a row number or an id.
    used = {*wanted, *(source.index if isinstance(source, Parquet) else [""])}
    features = [name for name in frame.columns if name not in used]
    if not features:
        raise ValueError(f"{path} has no columns left to be features.")
    ids = None if roles.id is None else _ids(path, roles.id, frame[roles.id])
    apart = None if roles.trusted_file is None else _apart(source, roles, features, ids)
    mark = roles.trusted_column
    return Rows(
        source=source,
        label=roles.label,
        X=frame[features],
        y=frame[roles.label].to_numpy(),
        trusted=None if mark is None else _truth_values(path, mark, frame[mark]),
        groups=None if roles.group is None else frame[roles.group].to_numpy(dtype=object),
        ids=ids,
        X_val=None if apart is None else apart[features],
        y_val=None if apart is None else apart[roles.label].to_numpy(),
        words=Words(
            rows=str(path),
            labels=f"Column {roles.label!r} of {path}",
            trusted=f"Column {mark!r} of {path}",
            apart=f"Column {roles.label!r} of {roles.trusted_file}",
            groups=f"Column {roles.group!r} of {path}",
        ),
    )


def _apart(source: Csv | Parquet, roles: Roles, features: list[str], ids: list[Any] | None) -> "pd.DataFrame":
    """The file of trusted rows, with the columns of the other."""
    assert roles.trusted_file is not None
    assert roles.label is not None
    path = roles.trusted_file
    gold = read(path, [name for name in (roles.label, roles.id) if name is not None])
    if isinstance(gold, Npz):
        raise ValueError(f"{path} must be a table, as {source.path} is.")
    _check_columns(gold, [roles.label, *features])
    if len(gold.frame) == 0:
        raise ValueError(f"{path} has no rows.")
    if roles.id is not None and ids is not None and roles.id in gold.frame:
        both = set(map(str, ids)) & set(gold.frame[roles.id].astype(str))
        if both:
            raise ValueError(
                f"{path} and {source.path} both have a row with the {roles.id} {min(both)!r}: a trusted row must not "
                "be judged as well."
            )
    labels = gold.frame[roles.label]
    as_text = source.frame[roles.label].dtype.kind == "O" and labels.dtype.kind in "iu"
    return gold.frame.assign(**{roles.label: labels.astype("str") if as_text else labels})


def _from_arrays(source: Npz, roles: Roles) -> Rows:
    path, arrays = source.path, source.arrays
    if roles.drop:
        raise ValueError(f"--drop names columns, and {path} has none: leave them out of X.")
    label = roles.label or "y"
    trusted = roles.trusted_column or ("trusted" if "trusted" in arrays else None)
    group = roles.group or ("groups" if "groups" in arrays else None)
    _check_columns(source, [name for name in ("X", label, trusted, group, roles.id) if name is not None])
    X = _numeric(path, "X", arrays["X"])
    if len(X) == 0:
        raise ValueError(f"{path} has no rows.")
    by_row = source.by_row()
    for name in (label, trusted, group, roles.id):
        if name is not None and (name not in by_row or arrays[name].ndim != 1):
            raise ValueError(f"{name} of {path} must have one value for each of the {len(X)} rows of X.")
    _check_labels(path, label, arrays[label])
    beside = _arrays_apart(source, roles, X)
    return Rows(
        source=source,
        label=label,
        X=X,
        y=arrays[label],
        trusted=None if trusted is None else _truth_values(path, trusted, arrays[trusted]),
        groups=None if group is None else arrays[group],
        ids=None if roles.id is None else _ids(path, roles.id, arrays[roles.id]),
        X_val=None if beside is None else beside[0],
        y_val=None if beside is None else beside[1],
        words=Words(
            rows=str(path),
            labels=f"{label} of {path}",
            trusted=f"{trusted} of {path}",
            apart=f"y_val of {path}" if roles.trusted_file is None else f"y of {roles.trusted_file}",
            groups=f"{group} of {path}",
        ),
    )


def _arrays_apart(source: Npz, roles: Roles, X: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """X_val and y_val of the file, or X and y of the one of trusted rows."""
    path, names, arrays = source.path, ("X_val", "y_val"), source.arrays
    if roles.trusted_file is not None:
        gold = read(roles.trusted_file)
        if not isinstance(gold, Npz):
            raise ValueError(f"{roles.trusted_file} must be an npz file, as {path} is.")
        path, names, arrays = gold.path, ("X", roles.label or "y"), gold.arrays
    elif not set(names) & set(arrays):
        return None
    lacking = [name for name in names if name not in arrays]
    if lacking:
        raise ValueError(f"{path} has no array {lacking[0]!r}.")
    rows, labels = _numeric(path, names[0], arrays[names[0]]), arrays[names[1]]
    if rows.shape[1:] != X.shape[1:] or labels.shape != (len(rows),):
        raise ValueError(f"{names[0]} of {path} has shape {rows.shape}, {names[1]} {labels.shape}, X {X.shape}.")
    return rows, labels


def _numeric(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise ValueError(f"{name} of {path} must be rows of numbers, got {values.dtype} of shape {values.shape}.")
    return values


def _check_columns(source: Source, wanted: Sequence[str]) -> None:
    lacking = [name for name in wanted if name not in source.names]
    if lacking:
        there = ", ".join(map(repr, source.names[:8])) + (" and others" if len(source.names) > 8 else "")
        what = "array" if isinstance(source, Npz) else "column"
        raise ValueError(f"{source.path} has no {what} {lacking[0]!r}; it has {there}.")
    earlier = [name for name in (*ADDED, GIVEN) if name in source.names]
    if earlier:
        raise ValueError(
            f"{source.path} has the column {earlier[0]!r} of an earlier run: take the file it was made from."
        )


def _check_labels(path: Path, name: str, labels: Any) -> None:
    """Labels that are hardly ever the same are no classes."""
    import pandas as pd

    different = pd.Series(labels).nunique()
    if different > max(2, len(labels) // 2):
        raise ValueError(
            f"{name!r} of {path} has {different:,} different values in {len(labels):,} rows: these are no classes."
        )


def _ids(path: Path, name: str, values: Any) -> list[Any]:
    import pandas as pd

    column = pd.Series(values)
    twice = np.flatnonzero(column.duplicated())
    if twice.size:
        raise ValueError(f"{name!r} of {path} has the id {column.iloc[twice[0]]!s} twice, again in row {twice[0]}.")
    return column.tolist()


def _truth_values(path: Path, name: str, values: Any) -> Bool[np.ndarray, " rows"]:
    """From truth values, 0 and 1, or words; missing is no."""
    import pandas as pd

    words = pd.Series(values).astype(object).fillna("").astype(str).str.strip().str.lower()
    mask = words.isin(YES).to_numpy()
    unclear = np.flatnonzero(~mask & ~words.isin(NO).to_numpy())
    if unclear.size:
        raise ValueError(
            f"{name!r} of {path} must be yes or no, and is {words.iloc[unclear[0]]!r} in row {unclear[0]}."
        )
    return mask
