"""Labels that come as several votes a row: a table, rows by annotators, with gaps."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import issparse

from proxbi.cleaning.inputs.checks import Where, Words, plain, some
from proxbi.cleaning.method.votes import Votes, by_votes_alone

NONE = -1
"""Stands for no vote."""


@dataclass(frozen=True)
class Ballots:
    """The votes, checked."""

    classes: np.ndarray
    table: Int[np.ndarray, "rows annotators"]
    """The class of each vote, -1 where there is none."""
    annotators: list[Hashable]
    """Their names: those of the columns of a data frame, else 0, 1, ..."""


def has_votes(y: Any) -> bool:
    """Whether `y` has two or more columns."""
    if issparse(y):
        raise ValueError(
            "y must not be sparse, where no vote and class 0 are the same: give an array with NaN for no vote."
        )
    shape = getattr(y, "shape", None) or np.shape(np.asarray(y, object))
    return len(shape) == 2 and shape[1] > 1


def read_ballots(y: Any, words: Words) -> Ballots:
    """The votes of a data frame or an array; NaN, None or NA is no vote."""
    import pandas as pd

    frame = y if hasattr(y, "columns") else pd.DataFrame(np.asarray(y, object))
    names = [plain(name) for name in frame.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{words.labels} has two annotators called {twice[0]!r}.")
    # Gaps make floats of integers, in some columns and not in others.
    values = frame.astype(object).infer_objects().convert_dtypes().astype(object).to_numpy(dtype=object)
    voted = ~pd.isna(values)
    if not voted.any():
        raise ValueError(f"{words.labels} has no vote.")
    given = values[voted].tolist()
    if len({isinstance(value, str) for value in given}) > 1:
        raise ValueError(f"{words.labels} mixes kinds of labels: text and numbers.")
    if bad := [value for value in given if isinstance(value, float) and not np.isfinite(value)]:
        raise ValueError(f"{words.labels} has the vote {bad[0]}, which is not a class.")
    classes, indices = np.unique(np.array(given), return_inverse=True)
    table = np.full(values.shape, NONE)
    table[voted] = indices
    return Ballots(classes, table, names)


def trusted_classes(
    table: Int[np.ndarray, "rows annotators"], classes: int, name: str, where: Where
) -> Int[np.ndarray, " rows"]:
    """The class of rows that are trusted: the one with the most votes. A row without one cannot be trusted."""
    counts = np.stack([np.sum(table == each, axis=1) for each in range(classes)], axis=1)
    tied = np.sum(counts == counts.max(axis=1, keepdims=True), axis=1) > 1
    if tied.any():
        row = int(np.flatnonzero(tied)[0])
        what = "no vote" if counts[row].max() == 0 else "as many votes for one class as for another"
        raise ValueError(f"{name} marks {where(row)}, which has {what}: its class is not known.")
    return counts.argmax(axis=1)


def labels_by_votes(
    ballots: Ballots, trusted: Bool[np.ndarray, " rows"] | None, words: Words
) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
    """The classes in order, and the label of each row: the most likely class by votes alone; of trusted rows the one
    with the most votes.
    """
    if len(ballots.classes) < 2:
        only = plain(ballots.classes[0])
        raise ValueError(f"{words.labels} has one class only, {only!r}; cleaning needs at least two.")
    known = np.full(len(ballots.table), NONE)
    if trusted is not None:
        gold = np.flatnonzero(trusted)
        known[gold] = trusted_classes(
            ballots.table[gold], len(ballots.classes), words.trusted, lambda row: words.where(gold[row])
        )
    shares, _ = by_votes_alone(Votes.of(ballots.table), len(ballots.classes), known)
    return ballots.classes, shares.argmax(axis=1)


class AsTheyCame(NamedTuple):
    """Votes of which some rows were decided by a person."""

    ballots: Ballots
    """The votes as they came."""
    labels: Int[np.ndarray, " rows"]
    """The class decided on; of other rows as `labels_by_votes` has it, by votes as they came: what somebody decides
    about a row changes the label of no other.
    """
    before: Int[np.ndarray, " rows"]
    """Of decided rows what the votes alone said (of one without votes, the class decided on), -1 for others."""


def as_they_came(
    y: Any,
    given: Any,
    trusted: Bool[np.ndarray, " rows"],
    decided: Bool[np.ndarray, " rows"] | None,
    words: Words,
) -> AsTheyCame:
    """Votes `y`, where those of decided rows are all for the class decided on, and `given`, what stood there before.
    Trusted rows with a vote in `given` are decided; or those that are said to be.
    """
    import pandas as pd

    rows = len(y)
    if np.shape(given) != np.shape(y):
        raise ValueError(f"given must have a vote for each of y, or None: {np.shape(y)}, got shape {np.shape(given)}.")
    names = getattr(y, "columns", None)
    # Read together, so that a class has one number in both.
    both = read_ballots(
        pd.DataFrame(np.concatenate([np.asarray(y, object), np.asarray(given, object)]), None, names), words
    )
    now, came = both.table[:rows], both.table[rows:]
    picked = trusted & (np.any(came != NONE, axis=1) if decided is None else decided)
    ballots = Ballots(both.classes, np.where(picked[:, None], came, now), both.annotators)
    _, labels = labels_by_votes(ballots, trusted & ~picked, words)
    places = np.flatnonzero(picked)
    classes = trusted_classes(now[places], len(both.classes), words.trusted, lambda row: words.where(places[row]))
    before = np.full(rows, NONE)
    before[places] = np.where(np.any(came[places] != NONE, axis=1), labels[places], classes)
    labels[places] = classes
    return AsTheyCame(ballots, labels, before)


def sentences(ballots: Ballots, trusted: Bool[np.ndarray, " rows"] | None) -> list[str]:
    """What is to be said of rows and annotators without votes, and of annotators with hardly any in common."""
    voted = ballots.table != NONE
    found = []
    if nobody := int(np.sum(~voted.any(axis=1))):
        rows = "1 row has" if nobody == 1 else f"{nobody:,} rows have"
        found.append(f"{rows} no vote: what is said of {'it' if nobody == 1 else 'them'} is by the features alone.")
    silent = [name for name, any_vote in zip(ballots.annotators, voted.any(axis=0), strict=True) if not any_vote]
    if silent:
        who = f"Annotator {silent[0]!r} has" if len(silent) == 1 else f"{len(silent)} annotators ({some(silent)}) have"
        found.append(f"{who} no votes: nothing is known about {'this one' if len(silent) == 1 else 'them'}.")
    if trusted is None and voted.sum(axis=1).max() == 1:
        found.append("No row has two votes: how good each annotator is was judged by the features alone.")
    return found
