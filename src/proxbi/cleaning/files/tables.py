"""A file of rows and the roles of its columns -> what the cleaner takes, and the cleaned rows -> a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from proxbi.cleaning.files.csv_file import INTEGER, MISSING, Columns, Csv
from proxbi.cleaning.files.decisions import Decided, Subject
from proxbi.cleaning.files.formats import Changes, Npz, Parquet, Source, decoded, read, write
from proxbi.cleaning.inputs.ballots import NONE, has_votes, labels_by_votes, read_ballots
from proxbi.cleaning.inputs.checks import Where, Words, by_index, require_labels
from proxbi.cleaning.result import Cleaned, Consensus

if TYPE_CHECKING:
    import pandas as pd

ADDED = ("proxbi_weight", "proxbi_issue", "proxbi_quality", "proxbi_suggested_label", "proxbi_trusted")
GIVEN = "proxbi_given_label"
OF_VOTES = ("proxbi_consensus_label", "proxbi_consensus_quality", "proxbi_next_vote")
"""Added where rows have several votes; the last is 1 for the row that another vote would help most, then 2, ..."""
OF_A_VOTE = "proxbi_quality_of_"
"""Goes before the name of an annotator: the probability that the vote is right."""
YES, NO = ("yes", "y", "true", "t", "1", "1.0"), ("no", "n", "false", "f", "0", "0.0", "")


class Roles(NamedTuple):
    """Which column is what, and a second file of trusted rows."""

    label: str | None = None
    """Or several, with commas: one for each annotator."""
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
    y: "np.ndarray | pd.DataFrame"
    """Labels; or votes, rows by annotators."""
    trusted: Bool[np.ndarray, " rows"] | None
    groups: np.ndarray | None
    ids: list[Any] | None
    X_val: "pd.DataFrame | np.ndarray | None"
    y_val: "np.ndarray | pd.DataFrame | None"
    words: Words
    unused: dict[str, str]
    """Columns that are no features, and why."""

    @property
    def classes(self) -> np.ndarray:
        """In order."""
        return read_ballots(self.y, self.words).classes if has_votes(self.y) else np.unique(self.y)

    def arguments(self, decided: Decided | None = None) -> dict[str, Any]:
        """For `prepare`; rows that were decided are trusted, with the labels decided on."""
        import pandas as pd

        names = ("X", "y", "X_val", "y_val", "trusted", "groups", "words")
        found = {name: getattr(self, name) for name in names}
        if decided is None or not len(decided.rows):
            return found
        came = np.asarray(self.y, object)
        y, given = came.copy(), np.full(came.shape, None, object)
        picked = np.isin(np.arange(len(y)), decided.rows)
        given[picked] = came[picked]
        found |= {"trusted": picked if self.trusted is None else picked | self.trusted, "given": given}
        if not has_votes(self.y):
            y[decided.rows] = decided.labels
            return found | {"y": y.astype(self.y.dtype)}
        y[decided.rows] = decided.labels[:, None]  # every annotator votes for the class decided on
        return found | {"y": pd.DataFrame(y, columns=getattr(self.y, "columns", None)), "decided": picked}

    def subject(self, digest: str) -> Subject:
        """What decisions about these rows must fit: of several votes a row, the label is what they alone say."""
        name, ids = self.source.name, self.called()[1]
        if not has_votes(self.y):
            return Subject(name, digest, np.asarray(self.y), ids)
        ballots = read_ballots(self.y, self.words)
        classes, labels = labels_by_votes(ballots, self.trusted, self.words)
        given = classes[labels].astype(object)
        given[np.all(ballots.table == NONE, axis=1)] = None
        return Subject(name, digest, given, ids, classes)

    def called(self) -> tuple[str, list[Any] | None]:
        """What to call the rows: by their ids, by their lines in a spreadsheet, or (None) by their numbers."""
        if self.ids is not None:
            return "id", self.ids
        return ("line", list(self.source.lines())) if isinstance(self.source, Csv) else ("row", None)


def load(path: Path, roles: Roles) -> Rows:
    """Read the file and the one of trusted rows, and see that the columns are there."""
    text = [*_parts(roles.label), *(name for name in (roles.label, roles.group, roles.id) if name is not None)]
    source = read(path, text)
    return _from_arrays(source, roles) if isinstance(source, Npz) else from_table(source, roles)


def save(rows: Rows, cleaned: Cleaned, classes: np.ndarray, mode: str, path: Path) -> None:
    """Write all columns of the file and what was found; with `mode` "drop" without the flagged rows, with "relabel"
    with the suggested labels (those given are in `proxbi_given_label`).

    What is written is about the labels in the file: one that a person decided against is flagged, and counts nothing.
    """
    n = len(rows.y)
    suggested = classes[cleaned.suggested[:n]]
    found = (cleaned.weight[:n], cleaned.issue[:n], cleaned.quality[:n], suggested, cleaned.trusted[:n])
    added = dict(zip(ADDED, found, strict=True))
    if cleaned.consensus is None:
        added = about_given(added, rows.y)
    else:
        added |= _of_votes(rows, cleaned.consensus.of_first(n), classes)
    write(rows.source, changes_of(added, rows.label, rows.y, mode), path)


def about_given(added: Columns, given: Any) -> Columns:
    """The columns `ADDED`, of labels of which a person may have decided some, as they are about those given."""
    weight, issue, quality, suggested, trusted = (added[name] for name in ADDED)
    overruled = trusted & (suggested != given)
    found = (np.where(overruled, 0.0, weight), issue | overruled, np.where(overruled, 0.0, quality), suggested, trusted)
    return dict(zip(ADDED, found, strict=True))


def changes_of(added: Columns, label: str, given: Any, mode: str) -> Changes:
    """What `mode` makes of the rows: `added` are columns, `given` the labels in the column `label`."""
    issue, suggested = added[ADDED[1]], added[ADDED[3]]
    if mode == "relabel":
        assert isinstance(given, np.ndarray), "several votes are not relabelled"
        return Changes(added | {GIVEN: given}, {label: suggested}, np.ones(len(issue), bool))
    return Changes(added, {}, ~issue if mode == "drop" else np.ones(len(issue), bool))


def _of_votes(rows: Rows, found: Consensus, classes: np.ndarray) -> dict[str, np.ndarray]:
    place = np.empty(len(found.label), np.int64)
    place[found.next_votes] = np.arange(1, len(place) + 1)
    votes = dict(zip(read_ballots(rows.y, rows.words).annotators, found.vote_quality.T, strict=True))
    return dict(zip(OF_VOTES, (classes[found.label], found.quality, place), strict=True)) | {
        f"{OF_A_VOTE}{name}": quality for name, quality in votes.items()
    }


def from_table(source: Csv | Parquet, roles: Roles) -> Rows:
    """The rows of a table, in their roles."""
    name, frame, where = source.name, source.frame, source.where
    if roles.label is None:
        raise ValueError(f"label must name the column of {name} that has the labels; it has {_columns(source)}.")
    columns = _label_columns(source, roles.label)
    wanted = [*columns, roles.trusted_column, roles.group, roles.id, *roles.drop]
    check_columns(source, [column for column in wanted if column is not None])
    if len(frame) == 0:
        raise ValueError(f"{name} has no rows.")
    labels = _called(columns, name)
    y = _given(frame, columns, labels, where)
    _require_classes(labels, y)
    # A data frame's index, which Parquet files name and CSV files leave without a name, is a row number or an id.
    index = source.index if isinstance(source, Parquet) else [""]
    reasons = dict.fromkeys(index, "the index of the rows") | dict.fromkeys(roles.drop, "you excluded it")
    named = (roles.id, "the ids"), (roles.group, "the groups"), (roles.trusted_column, "which rows are trusted")
    reasons |= {column: why for column, why in named if column is not None}
    reasons |= dict.fromkeys(columns, "the labels" if len(columns) == 1 else "the votes of an annotator")
    features = [column for column in frame.columns if column not in reasons]
    if not features:
        raise ValueError(f"{name} has no columns left to be features.")
    ids = None if roles.id is None else _ids(f"{roles.id!r} of {name}", frame[roles.id], where)
    apart = None if roles.trusted_file is None else _apart(source, roles, columns, features, ids)
    mark = roles.trusted_column
    return Rows(
        source=source,
        label=roles.label,
        X=frame[features],
        y=y,
        trusted=None if mark is None else truth_values(f"{mark!r} of {name}", frame[mark], where),
        groups=None if roles.group is None else frame[roles.group].to_numpy(dtype=object),
        ids=ids,
        X_val=None if apart is None else apart.frame[features],
        y_val=None if apart is None else _trusted_labels(apart.frame, columns, y),
        words=Words(
            rows=name,
            labels=labels,
            trusted=f"Column {mark!r} of {name}",
            apart=_called(columns, str(roles.trusted_file)),
            groups=f"Column {roles.group!r} of {name}",
            where=where,
            where_apart=where if apart is None else apart.where,
        ),
        unused={column: why for column, why in reasons.items() if column in frame.columns},
    )


def _parts(label: str | None) -> list[str]:
    return [] if label is None else [part.strip() for part in label.split(",") if part.strip()]


def _label_columns(source: Source, label: str) -> list[str]:
    """The column of this name, or those between its commas."""
    columns = [label] if label in source.names else _parts(label) or [label]
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"label names {twice[0]!r} twice.")
    return columns


def _called(columns: list[str], source: str) -> str:
    """The subject of a sentence, in the singular."""
    kind = "Column" if len(columns) == 1 else "The table of columns"
    return f"{kind} {', '.join(map(repr, columns))} of {source}"


def _given(frame: "pd.DataFrame", columns: list[str], name: str, where: Where) -> "np.ndarray | pd.DataFrame":
    """The labels; or the votes, which are all integers or all text, as each column of a CSV is by itself."""
    if len(columns) == 1:
        return require_labels(frame[columns[0]].to_numpy(), name, where)
    votes = frame[columns]
    return votes if len({votes[column].dtype.kind for column in columns} & {"O", "U", "T"}) == 0 else _as_text(votes)


def _as_text(votes: "pd.DataFrame") -> "pd.DataFrame":
    texts = votes.astype(object).map(str, na_action="ignore")
    known = texts.stack()
    if known.empty or not known.str.fullmatch(INTEGER).all():
        return texts
    return texts.map(int, na_action="ignore")


def _trusted_labels(
    frame: "pd.DataFrame", columns: list[str], y: "np.ndarray | pd.DataFrame"
) -> "np.ndarray | pd.DataFrame":
    """Those of trusted rows given apart, as text where the others are."""
    if len(columns) == 1:
        return frame[columns[0]].to_numpy()
    text = any(isinstance(value, str) for value in np.asarray(y, object).ravel())
    return frame[columns].astype(object).map(str, na_action="ignore") if text else _given(frame, columns, "", by_index)


def _apart(
    source: Csv | Parquet, roles: Roles, columns: list[str], features: list[str], ids: list[Any] | None
) -> Csv | Parquet:
    """The file of trusted rows, with the columns of the other."""
    assert roles.trusted_file is not None
    gold = read(roles.trusted_file, [*columns, *([] if roles.id is None else [roles.id])])
    if isinstance(gold, Npz):
        raise ValueError(f"{gold.name} must be a table, as {source.name} is.")
    check_columns(gold, [*columns, *features])
    if len(gold.frame) == 0:
        raise ValueError(f"{gold.name} has no rows.")
    if roles.id is not None and ids is not None and roles.id in gold.frame:
        both = set(map(str, ids)) & set(gold.frame[roles.id].astype(str))
        if both:
            raise ValueError(
                f"{gold.name} and {source.name} both have a row with the {roles.id} {min(both)!r}: a trusted row must "
                "not be judged as well."
            )
    label = columns[0]
    if len(columns) == 1 and source.frame[label].dtype.kind == "O" and gold.frame[label].dtype.kind in "iu":
        gold.frame[label] = gold.frame[label].astype("str")
    return gold


def _from_arrays(source: Npz, roles: Roles) -> Rows:
    name, arrays, where = source.name, source.arrays, source.where
    if roles.drop:
        raise ValueError(f"drop names columns, and {name} has none: leave them out of X.")
    label = roles.label or "y"
    columns = _label_columns(source, label)
    trusted = roles.trusted_column or ("trusted" if "trusted" in arrays else None)
    group = roles.group or ("groups" if "groups" in arrays else None)
    check_columns(source, [each for each in ("X", *columns, trusted, group, roles.id) if each is not None])
    X = _numeric(name, "X", arrays["X"])
    if len(X) == 0:
        raise ValueError(f"{name} has no rows.")
    by_row = source.by_row()
    for each in (*columns, trusted, group, roles.id):
        if each is not None and (
            each not in by_row or arrays[each].ndim != 1 + (each == label and arrays[label].ndim == 2)
        ):
            raise ValueError(f"{each} of {name} must have one value for each of the {len(X)} rows of X.")
    y = _labels_of_arrays(arrays, columns, f"{label} of {name}", where)
    _require_classes(f"{label} of {name}", y)
    beside = _arrays_apart(source, roles, X)
    return Rows(
        source=source,
        label=label,
        X=X,
        y=y,
        trusted=None if trusted is None else truth_values(f"{trusted} of {name}", decoded(arrays[trusted]), where),
        groups=None if group is None else decoded(arrays[group]),
        ids=None if roles.id is None else _ids(f"{roles.id} of {name}", decoded(arrays[roles.id]), where),
        X_val=None if beside is None else beside[0],
        y_val=None if beside is None else beside[1],
        words=Words(
            rows=name,
            labels=f"{label} of {name}",
            trusted=f"{trusted} of {name}",
            apart=f"y_val of {name}" if roles.trusted_file is None else f"y of {roles.trusted_file}",
            groups=f"{group} of {name}",
        ),
        unused={},
    )


def _labels_of_arrays(
    arrays: dict[str, np.ndarray], columns: list[str], name: str, where: Where
) -> "np.ndarray | pd.DataFrame":
    """One array of labels, one of votes, or one for each annotator."""
    import pandas as pd

    if len(columns) > 1:
        return pd.DataFrame({column: decoded(arrays[column]) for column in columns})
    values = decoded(arrays[columns[0]])
    return values if has_votes(values) else require_labels(values.ravel(), name, where)


def _arrays_apart(source: Npz, roles: Roles, X: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """X_val and y_val of the file, or X and y of the one of trusted rows."""
    name, names, arrays = source.name, ("X_val", "y_val"), source.arrays
    if roles.trusted_file is not None:
        gold = read(roles.trusted_file)
        if not isinstance(gold, Npz):
            raise ValueError(f"{gold.name} must be an npz file, as {name} is.")
        name, names, arrays = gold.name, ("X", roles.label or "y"), gold.arrays
    elif not set(names) & set(arrays):
        return None
    lacking = [each for each in names if each not in arrays]
    if lacking:
        raise ValueError(f"{name} has no array {lacking[0]!r}.")
    rows, labels = _numeric(name, names[0], arrays[names[0]]), decoded(arrays[names[1]])
    if rows.shape[1:] != X.shape[1:] or labels.shape != (len(rows),):
        raise ValueError(f"{names[0]} of {name} has shape {rows.shape}, {names[1]} {labels.shape}, X {X.shape}.")
    return rows, labels


def _numeric(source: str, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "biuf" or values.ndim < 2:
        raise ValueError(f"{name} of {source} must be rows of numbers, got {values.dtype} of shape {values.shape}.")
    return values


def _columns(source: Source) -> str:
    return ", ".join(map(repr, source.names[:8])) + (" and others" if len(source.names) > 8 else "")


def check_columns(source: Source, wanted: Sequence[str]) -> None:
    """Refuse a file without these columns, or with those of an earlier run."""
    lacking = [name for name in wanted if name not in source.names]
    if lacking:
        what = "array" if isinstance(source, Npz) else "column"
        raise ValueError(f"{source.name} has no {what} {lacking[0]!r}; it has {_columns(source)}.")
    earlier = [name for name in (*ADDED, GIVEN, *OF_VOTES) if name in source.names]
    if earlier:
        raise ValueError(
            f"{source.name} has the column {earlier[0]!r} of an earlier run: take the file it was made from."
        )


def _require_classes(name: str, labels: "np.ndarray | pd.DataFrame") -> None:
    """Refuse labels that are hardly ever the same."""
    import pandas as pd

    known = pd.Series(np.asarray(labels, object).ravel()).dropna()
    different = known.nunique()
    if different > max(2, len(labels) // 2):
        raise ValueError(
            f"{name} has {different:,} different values in {len(labels):,} rows: this looks like an identifier or a "
            "numeric target, not class labels."
        )


def _ids(name: str, values: Any, where: Where) -> list[Any]:
    import pandas as pd

    column = pd.Series(values)
    twice = np.flatnonzero(column.duplicated())
    if twice.size:
        raise ValueError(f"{name} has the id {column.iloc[twice[0]]!s} twice, again in {where(twice[0])}.")
    return column.tolist()


def truth_values(name: str, values: Any, where: Where) -> Bool[np.ndarray, " rows"]:
    """From truth values, 0 and 1, or words; missing is no."""
    import pandas as pd

    column = pd.Series(values).astype(object)
    words = column.where(~column.isin(MISSING)).fillna("").astype(str).str.strip().str.lower()
    mask = words.isin(YES).to_numpy()
    unclear = np.flatnonzero(~mask & ~words.isin(NO).to_numpy())
    if unclear.size:
        accepted = f"{', '.join(YES)} for trusted rows; {', '.join(filter(None, NO))} or nothing for others"
        raise ValueError(f"{name} must be one of {accepted}, and is {words.iloc[unclear[0]]!r} in {where(unclear[0])}.")
    return mask
