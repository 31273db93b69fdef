"""What people give the cleaner -> what the method takes."""

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi._process import require_a_working_jax
from proxbi.cleaning.inputs import ballots
from proxbi.cleaning.inputs.ballots import has_votes
from proxbi.cleaning.inputs.checks import Words as Words
from proxbi.cleaning.inputs.checks import (
    checked_probabilities,
    checked_weights,
    class_indices,
    group_indices,
    plain,
    some,
    trusted_mask,
)
from proxbi.cleaning.inputs.checks import require_labels as require_labels
from proxbi.cleaning.inputs.features import Encoder
from proxbi.cleaning.method.drawing import FIT, checked_number, learned_from

COPIES = 1.5
"""Rows of X that equal a row of X_val, for each of these: more of them, and rows are alike by chance, not copied."""
MANY_COPIES = 0.05
"""The share of rows that are copies of others at which it is said."""


class Names(NamedTuple):
    """Of a table of which only some rows are at hand."""

    classes: np.ndarray
    groups: list[str]


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
    pred_probs: Float[np.ndarray, "all_rows classes"] | None = None
    """Probabilities of the user's own model; NaN for the rows of X_val."""
    votes: Int[np.ndarray, "all_rows annotators"] | None = None
    """Where there are several: the class of each, -1 where there is none. `labels` are then what the votes alone say,
    and for rows without any vote nothing, until `with_consensus`."""
    annotators: tuple[Hashable, ...] = ()
    """Their names."""

    def with_consensus(self, label: Int[np.ndarray, " all_rows"]) -> "Inputs":
        """With these labels for rows without any vote."""
        return replace(self, labels=np.where(self.labelled, self.labels, label))

    @property
    def labelled(self) -> Bool[np.ndarray, " all_rows"]:
        """The rows that have a label to be judged, or trusted: all but those without any vote."""
        if self.votes is None:
            return np.ones(len(self.labels), bool)
        voted = np.any(self.votes >= 0, axis=1)
        return voted if self.trusted is None else np.logical_or(voted, self.trusted)

    learn_from: int = FIT
    """The maximal number of rows that are fitted."""
    before: Int[np.ndarray, " all_rows"] | None = None
    """The label that a trusted row had until a person decided about it; -1 for all others."""

    @property
    def as_given(self) -> Int[np.ndarray, " all_rows"]:
        """The labels before any were decided."""
        return self.labels if self.before is None else np.where(self.before >= 0, self.before, self.labels)

    def digest(self) -> str:
        """The SHA-256 of the rows and their labels, or votes, as they came."""
        found = hashlib.sha256("\0".join(map(str, self.classes.tolist())).encode())
        came = self.as_given if self.votes is None else self.votes
        for part in (self.features[: self.rows], came[: self.rows]):
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()


def prepare(
    X: Any,
    y: Any,
    *,
    X_val: Any = None,
    y_val: Any = None,
    trusted: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    pred_probs: Any = None,
    given: Any = None,
    decided: Bool[np.ndarray, " rows"] | None = None,
    words: Words | None = None,
    learn_from: int = FIT,
    seed: int = 0,
    names: Names | None = None,
) -> Inputs:
    """Encode and check. `X` and `X_val` are data frames or numeric arrays with the same columns; `trusted` marks rows
    of X (truth values, or indices), `X_val, y_val` are trusted rows beside X, `pred_probs` are probabilities for the
    rows of X, out of fold, and `given` the labels that trusted rows had before a person decided about them (missing
    where nobody did). `y` of two or more columns are votes, rows by annotators; the class of a trusted row is then the
    one with the most votes, and `given` has the votes as they came (`decided` marks rows that were decided, if these
    are not those for which it has any). Of a large table the scales of the features are learned from the rows that
    `clean` with the same `seed` and `learn_from` learns from. Where X is itself such a sample, `names` has the classes
    and groups of the whole table.
    """
    require_a_working_jax()
    learn_from = checked_number(learn_from)
    words = words or Words()
    voting = ballots.read_ballots(y, words) if has_votes(y) else None
    rows = len(y)
    marked = None if trusted is None else trusted_mask(trusted, rows, words)
    before = None
    if given is not None and marked is None:
        raise ValueError("given must come with trusted, the rows whose labels were decided.")
    if voting is None:
        classes, labels = class_indices(y, words, None if names is None else names.classes)
        before = None if given is None or marked is None else _before(given, marked, classes, rows)
    elif given is None or marked is None:
        classes, labels = ballots.labels_by_votes(voting, marked, words)
    else:
        voting, labels, before = ballots.as_they_came(y, given, marked, decided, words)
        classes = voting.classes
    beside = np.array([], np.int64) if y_val is None else _places(classes, y_val, words)
    more = len(beside)
    mask = _lengthened(marked, more, True)
    if mask is None and y_val is not None:
        mask = np.arange(rows + more) >= rows
    known = None if names is None else names.groups
    group_names, group_of = ([], None) if groups is None else group_indices(groups, rows, words, known)
    weight = None if sample_weight is None else checked_weights(sample_weight, labels)
    chances = None if pred_probs is None else checked_probabilities(pred_probs, rows, classes)
    whole = names is not None or voting is not None  # a sample already; or a table that none is drawn from
    encoder = Encoder(words.where)
    encoder = encoder.fit(X, weight) if whole else _learned(encoder, X, weight, mask, learn_from, seed, words)
    features, said = _encoded(encoder, X, X_val, words)
    labels = np.append(labels, beside)
    said += (
        [*_repeated_rows(features[: min(rows, learn_from)], labels[: min(rows, learn_from)])]
        if voting is None
        else ballots.sentences(voting, marked)
    )
    return Inputs(
        features=features,
        labels=labels,
        classes=classes,
        trusted=mask,
        groups=_lengthened(group_of, more, len(group_names)),
        group_names=[*group_names, "(trusted rows given apart)"] if group_names and more else group_names,
        weight=_lengthened(weight, more, 1.0),
        rows=rows,
        encoder=encoder,
        warnings=[*said, *([] if mask is None else _classes_without_trust(labels[mask], classes))],
        pred_probs=_lengthened(chances, more, np.nan),
        votes=None if voting is None else _lengthened(voting.table, more, ballots.NONE),
        annotators=() if voting is None else tuple(voting.annotators),
        learn_from=learn_from,
        before=_lengthened(before, more, -1),
    )


def _learned(
    encoder: Encoder,
    X: Any,
    weight: Float[np.ndarray, " rows"] | None,
    trusted: Bool[np.ndarray, " all_rows"] | None,
    learn_from: int,
    seed: int,
    words: Words,
) -> Encoder:
    """The encoder, fitted to all rows of X or, in a large table, to those that are learned from."""
    every = np.zeros(len(X), bool) if trusted is None else trusted
    counted = None if weight is None else np.append(weight > 0, np.ones(len(every) - len(X), bool))
    some = learned_from(seed, learn_from, every, counted)
    some = some[some < len(X)]
    if len(some) == len(X):
        return encoder.fit(X, weight)
    rows = X.iloc[some] if hasattr(X, "iloc") else X[some]
    return encoder.fit(rows, None if weight is None else weight[some], lambda row: words.where(int(some[row])))


def _encoded(
    encoder: Encoder, X: Any, X_val: Any, words: Words
) -> tuple[Float[np.ndarray, "all_rows width"], list[str]]:
    """The features of all rows, and what is to be said of them."""
    features = encoder.transform(X)
    if X_val is None:
        return features, list(encoder.warnings)
    apart = encoder.transform(X_val, words.where_apart)
    return np.concatenate([features, apart]), [*encoder.warnings, *_warnings_apart(features, apart, words)]


def looks_untransformed(features: Float[np.ndarray, "rows width"], beside: Float[np.ndarray, "others width"]) -> bool:
    """Whether the rows beside are, on average, twice as far from the mean of the others as those themselves, or all in
    one spot.

    Mean squares over all columns together, so that columns which are rarely anything but 0 weigh little.
    """
    mean, variance = features.mean(axis=0), np.sum(features.var(axis=0))
    far = np.mean(np.sum((beside - mean) ** 2, axis=1)) > 4 * variance
    in_one_spot = len(beside) >= 10 and 25 * np.sum(beside.var(axis=0)) < variance
    return bool(far or in_one_spot)


def _warnings_apart(
    features: Float[np.ndarray, "rows width"], apart: Float[np.ndarray, "others width"], words: Words
) -> list[str]:
    """What looks wrong with trusted rows given apart."""
    found = []
    if looks_untransformed(features, apart):
        found.append(
            "X_val lies far from X, as when a pipeline transforms X but not X_val: use "
            'Pipeline(..., transform_input=["X_val"]) with metadata routing, or mark trusted rows of X by trusted=.'
            if words.rows == Words().rows
            else f"The trusted rows given apart lie far from those of {words.rows}: see that the columns are the same, "
            "in the same units."
        )
    if copies := _copies(features, apart):
        found.append(
            f"{copies:,} of the {len(apart):,} trusted rows given apart are among the rows to be judged as well, where "
            "they vouch for themselves: mark trusted rows in place instead, or leave them out of the rows to be judged."
        )
    return found


def _copies(features: Float[np.ndarray, "rows width"], apart: Float[np.ndarray, "others width"]) -> int:
    """How many rows apart are copies of rows, not just alike: few columns of few values make many rows alike."""
    keys = {row.tobytes() for row in apart}
    equal = [key for row in features if (key := row.tobytes()) in keys]
    return len(set(equal)) if len(equal) <= COPIES * len(set(equal)) else 0


def _repeated_rows(features: Float[np.ndarray, "rows width"], labels: Int[np.ndarray, " rows"]) -> Iterator[str]:
    """A warning where many rows are copies of others, labels included: no label is judged without its copies. Rows that
    are alike by chance, as columns of few values make them, do not all agree.
    """
    keys = [row.tobytes() for row in features]
    distinct, agreeing = len(set(keys)), len(set(zip(keys, labels.tolist(), strict=True)))
    copies = len(keys) - distinct
    if distinct == agreeing and copies > MANY_COPIES * len(keys):
        yield (
            f"{copies:,} of {len(keys):,} rows are exact copies of others, labels included: they vouch for one "
            "another, and mistakes among them are not seen. Leave copies out, unless they were labelled independently."
        )


def _classes_without_trust(trusted: Int[np.ndarray, " trusted"], classes: np.ndarray) -> list[str]:
    lacking = np.setdiff1d(np.arange(len(classes)), trusted)
    if not lacking.size:
        return []
    names = [plain(classes[index]) for index in lacking]
    which = f"the class {names[0]!r}" if len(names) == 1 else f"{len(names)} classes ({some(names)})"
    return [f"No trusted row has {which}: labels of this kind are judged by untrusted rows alone."]


def _before(given: Any, trusted: Bool[np.ndarray, " rows"], classes: np.ndarray, rows: int) -> Int[np.ndarray, " rows"]:
    """For each trusted row which label it had; -1 where that is missing, or a label that no row has any more."""
    values = np.asarray(given, object)
    if values.shape != (rows,):
        raise ValueError(f"given must have a label for each of the {rows} rows, or None, got shape {values.shape}.")
    place: dict[Hashable, int] = {label: index for index, label in enumerate(classes.tolist())}
    found = [place.get(label, -1) if sure else -1 for label, sure in zip(map(plain, values), trusted, strict=True)]
    return np.array(found, np.int64)


def _places(classes: np.ndarray, y_val: Any, words: Words) -> Int[np.ndarray, " rows"]:
    if has_votes(y_val):
        apart = ballots.read_ballots(y_val, words._replace(labels=words.apart))
        values = apart.classes[ballots.trusted_classes(apart.table, len(apart.classes), words.apart, words.where_apart)]
    else:
        values = require_labels(y_val, words.apart, words.where_apart)
    place: dict[Hashable, int] = {label: index for index, label in enumerate(classes.tolist())}
    unknown = [row for row, label in enumerate(values.tolist()) if label not in place]
    if unknown:
        raise ValueError(
            f"{words.apart} has the label {plain(values[unknown[0]])!r} in {words.where_apart(unknown[0])}, and "
            f"{words.labels} does not have it."
        )
    return np.array([place[label] for label in values.tolist()], np.int64)


def _lengthened(values: np.ndarray | None, more: int, fill: float) -> np.ndarray | None:
    """The values of the rows of X, and `fill` for those of X_val."""
    if values is None or not more:
        return values
    return np.concatenate([values, np.full((more, *values.shape[1:]), fill)])
