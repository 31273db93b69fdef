"""Which rows of a large table are learned from.

Each row has a random number that depends on the seed and its place in the table alone. The rows learned from are the
`FIT` ones with the smallest numbers among those that are not trusted, and half as many of those that are: a simple
random sample. The smallest of a union are among the smallest of its parts, so that it can be drawn from blocks of rows,
in any order and on any machine, and is the same however the table is cut (bottom-k sampling; Cohen and Kaplan,
Summarizing data using bottom-k sketches, PODC 2007).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.method.randomness import numbers

FIT = 30_000
"""The most rows that are fitted, half of them trusted at most: in a larger table no others are learned from."""


class Drawn(NamedTuple):
    """Places of rows in the table."""

    noisy: Int[np.ndarray, " noisy"]
    gold: Int[np.ndarray, " gold"]

    @property
    def rows(self) -> Int[np.ndarray, " rows"]:
        """Of both kinds, in the order of the table."""
        return np.sort(np.concatenate(self))


def drawn(
    seed: int,
    trusted: Bool[np.ndarray, " rows"],
    counted: Bool[np.ndarray, " rows"] | None = None,
    first: int = 0,
) -> Drawn:
    """From a block of rows of which the first has the place `first`; `counted` are those that may be fitted."""
    may = ~trusted if counted is None else ~trusted & counted
    return Drawn(
        _lowest(seed, first + np.flatnonzero(may), FIT), _lowest(seed, first + np.flatnonzero(trusted), FIT // 2)
    )


def merged(seed: int, parts: Iterable[Drawn]) -> Drawn:
    """From all blocks, by what was drawn from each.

    >>> trusted = np.arange(100_000) % 3 == 0
    >>> blocks = [drawn(0, trusted[first : first + 40_000], first=first) for first in (0, 40_000, 80_000)]
    >>> bool(np.all(merged(0, blocks).rows == drawn(0, trusted).rows))
    True
    """
    none = np.zeros(0, np.int64)
    noisy, gold = none, none
    for part in parts:
        noisy = _lowest(seed, np.concatenate([noisy, part.noisy]), FIT)
        gold = _lowest(seed, np.concatenate([gold, part.gold]), FIT // 2)
    return Drawn(noisy, gold)


def learned_from(
    seed: int, trusted: Bool[np.ndarray, " rows"], counted: Bool[np.ndarray, " rows"] | None = None
) -> Int[np.ndarray, " some"]:
    """The rows of a whole table that are learned from: all, where there are no more than can be fitted."""
    return np.arange(len(trusted)) if len(trusted) <= FIT else drawn(seed, trusted, counted).rows


def with_apart(seed: int, of_table: Drawn, rows: int, apart: int) -> Int[np.ndarray, " some"]:
    """The rows that are learned from, where `apart` trusted rows come after the `rows` of the table, of which some were
    drawn.
    """
    if rows + apart <= FIT:
        return np.arange(rows + apart)
    return merged(seed, [of_table, drawn(seed, np.ones(apart, bool), first=rows)]).rows


def _lowest(seed: int, rows: Int[np.ndarray, " rows"], most: int) -> Int[np.ndarray, " some"]:
    if len(rows) <= most:
        return rows
    return np.sort(rows[np.argpartition(numbers(seed, rows.astype(np.uint64)), most)[:most]])
