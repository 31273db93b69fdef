"""Why a row is suspected, in words: its votes if it has several, the labels of the most similar rows, and the values
that are unusual for its label.

The evidence of a value x of a numeric column for label s against g is ((x - m_g)^2 - (x - m_s)^2) / (2 d^2), the
difference of two normal log-likelihoods: m are the means over the rows of each label that are probably right, and d^2
is their mean variance. The evidence of a category is the difference of the logarithms of its shares among these rows.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.inputs.columns import Column, columns_of, numbers, texts
from proxbi.cleaning.report.rows import Rows
from proxbi.report.markup import number, percent, short

NEIGHBOURS = 5
NAMED = 5
"""The maximal number of annotators to name who gave the same vote."""
SPEAKING = 2
"""The maximal number of values to name; each must make the suggested label at least `TELLING` times as likely."""
TELLING = 2.0
LETTERS = 40
"""The maximal length of a name or a value."""
BLOCK = 4_000_000
"""Distances computed at a time."""
LEAST = 0.1
"""The smallest standard deviation within classes, relative to that of the column: a class may hardly vary."""
MOST_LEVELS = 1000
"""The maximal number of values of a category: with more it is a name, or free text."""
EXPECTED = 0.5
"""Rows added to each count of a category: one that does not occur is rare, not impossible."""


def reasons(rows: Rows, chosen: Int[np.ndarray, " chosen"]) -> list[list[str]]:
    """The sentences for each chosen row; none if nothing is known about the rows except their labels."""
    sources = votes_given(rows, chosen), nearest_labels(rows, chosen), unusual_values(rows, chosen)
    return [[sentence for part in parts for sentence in part] for parts in zip(*sources, strict=True)]


# --- Its votes --------------------------------------------------------------------------------------------------------


def votes_given(rows: Rows, chosen: Int[np.ndarray, " chosen"]) -> list[list[str]]:
    """The votes of each row, the most frequent first, and who gave them."""
    if rows.votes is None:
        return [[] for _ in chosen]
    return [[_voted(rows, votes)] if np.any(votes >= 0) else ["It has no vote."] for votes in rows.votes[chosen]]


def _voted(rows: Rows, votes: Int[np.ndarray, " annotators"]) -> str:
    counts = Counter(votes[votes >= 0].tolist()).most_common()
    said = [f"{n} × “{short(rows.labels[label], LETTERS)}” ({_who(rows, votes == label)})" for label, n in counts]
    return f"Votes: {', '.join(said)}."


def _who(rows: Rows, voted: Bool[np.ndarray, " annotators"]) -> str:
    names = [short(rows.annotators[place], LETTERS) for place in np.flatnonzero(voted).tolist()]
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


# --- The most similar rows --------------------------------------------------------------------------------------------


def nearest_labels(rows: Rows, chosen: Int[np.ndarray, " chosen"]) -> list[list[str]]:
    """The labels of the nearest trusted rows, or of the nearest rows if too few are trusted."""
    if rows.features is None or not len(chosen):
        return [[] for _ in chosen]
    trusted = np.flatnonzero(rows.cleaned.trusted)
    kind, among = ("trusted rows", trusted) if len(trusted) >= NEIGHBOURS else ("rows", np.arange(len(rows.given)))
    near = nearest(rows.features, chosen, among, NEIGHBOURS)
    return [[_labelled(kind, rows, ours[ours >= 0])] for ours in near]


def _labelled(kind: str, rows: Rows, near: Int[np.ndarray, " near"]) -> str:
    counts = Counter(rows.labels[label] for label in rows.given[near]).most_common()
    said = ", ".join(f"{count} × “{short(label, LETTERS)}”" for label, count in counts)
    kind_of_id = "row" if rows.ids is None else rows.id_name
    called = ", ".join(short(rows.called(row), LETTERS) for row in near.tolist())
    return f"The {len(near)} nearest {kind}: {said} ({kind_of_id} {called})."


def nearest(
    features: Float[np.ndarray, "rows columns"],
    chosen: Int[np.ndarray, " chosen"],
    among: Int[np.ndarray, " among"],
    count: int,
) -> Int[np.ndarray, "chosen count"]:
    """The rows `among` these that are nearest to each chosen row, which is left out; the nearest first, and -1 if there
    are fewer.
    """
    others, found = features[among].astype(np.float32), np.full((len(chosen), count), -1)
    squares = np.sum(others**2, axis=1)
    step = max(1, BLOCK // max(1, len(among)))
    for first in range(0, len(chosen), step):
        ours = chosen[first : first + step]
        apart = squares[None, :] - 2 * features[ours].astype(np.float32) @ others.T
        apart[ours[:, None] == among[None, :]] = np.inf
        most = min(count, len(among))
        places = np.argpartition(apart, most - 1, axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(apart, places, axis=1), axis=1, kind="stable")
        places = np.take_along_axis(places, order, axis=1)
        known = np.isfinite(np.take_along_axis(apart, places, axis=1))
        found[first : first + step, :most] = np.where(known, among[places], -1)
    return found


# --- Its values -------------------------------------------------------------------------------------------------------


class Speech(NamedTuple):
    """The evidence of one column for the suggested label of each row, and how to put it in words."""

    strength: Float[np.ndarray, " chosen"]
    sentences: Sequence[str]


def unusual_values(rows: Rows, chosen: Int[np.ndarray, " chosen"]) -> list[list[str]]:
    """The values with the strongest evidence for the suggested label against the given one."""
    if rows.frame is None or not len(chosen):
        return [[] for _ in chosen]
    spoken = [_speech(rows, column, chosen) for column in columns_of(rows.frame)]
    strengths = np.stack([one.strength for one in spoken]) if spoken else np.zeros((0, len(chosen)))
    best = np.argsort(-strengths, axis=0, kind="stable")[:SPEAKING]
    return [
        [spoken[column].sentences[place] for column in best[:, place] if strengths[column, place] > np.log(TELLING)]
        for place in range(len(chosen))
    ]


def _speech(rows: Rows, column: Column, chosen: Int[np.ndarray, " chosen"]) -> Speech:
    cleaned = rows.cleaned
    right = cleaned.trusted | (cleaned.quality >= 0.5)
    given, suggested = rows.given[chosen], cleaned.suggested[chosen]
    speak = _category if column.block is None else _number
    return speak(rows, column, right, chosen, (given, suggested))


Pair = tuple[Int[np.ndarray, " chosen"], Int[np.ndarray, " chosen"]]
"""The given and the suggested class of each chosen row."""


def _number(
    rows: Rows, column: Column, right: Bool[np.ndarray, " rows"], chosen: Int[np.ndarray, " chosen"], pair: Pair
) -> Speech:
    values = numbers(column)
    known = right & np.isfinite(values)
    overall = float(values[known].std()) if known.any() else 0.0
    means, variances = np.full(len(rows.labels), np.nan), np.full(len(rows.labels), np.nan)
    for label in np.union1d(*pair):
        ours = values[known & (rows.given == label)]
        if len(ours) > 1:
            means[label], variances[label] = ours.mean(), ours.var()
    x = values[chosen]
    with np.errstate(all="ignore"):
        variance = np.maximum((variances[pair[0]] + variances[pair[1]]) / 2, (LEAST * overall) ** 2)
        apart = (x - means[pair[0]]) ** 2 - (x - means[pair[1]]) ** 2
        strength = np.nan_to_num(apart / (2 * variance), nan=0.0, posinf=0.0, neginf=0.0)
    name = short(column.name, LETTERS)

    def usual(label: int) -> str:
        return f"{number(float(means[label]))} for “{short(rows.labels[label], LETTERS)}”"

    sentences = [
        f"{name} is {number(float(value))}; on average {usual(g)} and {usual(s)}."
        for value, g, s in zip(x, *pair, strict=True)
    ]
    return Speech(strength, sentences)


def _category(
    rows: Rows, column: Column, right: Bool[np.ndarray, " rows"], chosen: Int[np.ndarray, " chosen"], pair: Pair
) -> Speech:
    import pandas as pd

    values, missing = texts(column)
    codes, levels = pd.factorize(np.where(missing, "", values))
    if len(levels) > MOST_LEVELS:
        return Speech(np.zeros(len(chosen)), [""] * len(chosen))
    counts = np.zeros((len(rows.labels), len(levels)))
    np.add.at(counts, (rows.given[right], codes[right]), 1)
    same, total = [counts[c, codes[chosen]] for c in pair], [counts[c].sum(axis=1) for c in pair]
    shares = [part / np.maximum(1, whole) for part, whole in zip(same, total, strict=True)]
    odds = [(part + EXPECTED) / (whole + 2 * EXPECTED) for part, whole in zip(same, total, strict=True)]
    name = short(column.name, LETTERS)
    sentences = [
        f"{name} is “{short(str(value), LETTERS)}”, as in {percent(a)} of “{short(rows.labels[g], LETTERS)}” and "
        f"{percent(b)} of “{short(rows.labels[s], LETTERS)}”."
        for value, g, s, a, b in zip(levels[codes[chosen]], *pair, *shares, strict=True)
    ]
    return Speech(np.log(odds[1]) - np.log(odds[0]), sentences)


# --- Copies -----------------------------------------------------------------------------------------------------------

NEAR = 0.13
"""Two rows are near copies if their distance is less than this fraction of the median distance to the nearest row, as
in the Datalab of cleanlab."""
SAMPLED, PROJECTIONS, NEXT = 500, 6, 3
"""The number of rows whose nearest distance is computed; and the search for copies: candidates are rows that are
neighbours, or nearly so, along random directions. Exact copies are always found."""
MOST_COPIES = 25


class Copies(NamedTuple):
    """Two rows that are (nearly) the same, with different labels."""

    first: int
    second: int
    exact: bool


def contradicting_copies(rows: Rows, draw: np.random.Generator) -> list[Copies]:
    """Pairs of rows that are the same or nearly so, and are labelled differently; exact ones first."""
    features = rows.features
    if features is None or len(features) < NEIGHBOURS or features.shape[1] == 0:
        return []
    sample = draw.permutation(len(features))[:SAMPLED]
    closest = nearest(features, sample, np.arange(len(features)), 1)[:, 0]
    usual = float(np.median(np.linalg.norm(features[sample] - features[closest], axis=1)))
    found: dict[tuple[int, int], float] = {}
    for direction in draw.normal(size=(PROJECTIONS, features.shape[1])).astype(np.float32):
        order = np.argsort(features @ direction, kind="stable")
        for step in range(1, NEXT + 1):
            one, other = order[:-step], order[step:]
            differ = rows.given[one] != rows.given[other]
            one, other = one[differ], other[differ]
            apart = np.linalg.norm(features[one] - features[other], axis=1)
            for place in np.flatnonzero(apart <= NEAR * usual):
                pair = sorted((int(one[place]), int(other[place])))
                found[pair[0], pair[1]] = float(apart[place])
    pairs = sorted(found.items(), key=lambda item: (item[1], item[0]))[:MOST_COPIES]
    return [Copies(*pair, apart == 0) for pair, apart in pairs]
