"""The rows of a large table that the method learns from.

Each row has a random number that depends only on the seed and on the position of the row in the table. The sample is
the `most` untrusted rows with the smallest numbers, and half as many trusted rows: a simple random sample. The smallest
numbers of a union are among the smallest numbers of its parts. So the sample can be drawn from blocks of rows, in any
order and on any machine, and does not depend on how the table is cut (bottom-k sampling; Cohen and Kaplan, Summarizing
data using bottom-k sketches, PODC 2007).
"""

from collections.abc import Iterable
from numbers import Integral
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from proxbi.cleaning.method.randomness import numbers

FIT = 30_000
"""The default maximal number of fitted rows, at most half of them trusted: learning from so many takes a minute or two,
and a gigabyte, on any machine."""
FEWEST = 100
"""The smallest allowed value of this number: half of it is the least for labels to be judged by one another."""


class Drawn(NamedTuple):
    """Row indices in the table."""

    noisy: Int[np.ndarray, " noisy"]
    gold: Int[np.ndarray, " gold"]

    @property
    def rows(self) -> Int[np.ndarray, " rows"]:
        """Trusted and untrusted rows, in the order of the table."""
        return np.sort(np.concatenate(self))


def checked_number(learn_from: object) -> int:
    """The maximal number of rows to fit; an error if it is invalid."""
    if isinstance(learn_from, bool) or not isinstance(learn_from, Integral):
        raise TypeError(f"learn_from must be an integer, the maximal number of rows to learn from, got {learn_from!r}.")
    if learn_from < FEWEST:
        raise ValueError(f"learn_from must be at least {FEWEST}, got {learn_from}.")
    return int(learn_from)


def drawn(
    seed: int,
    most: int,
    trusted: Bool[np.ndarray, " rows"],
    counted: Bool[np.ndarray, " rows"] | None = None,
    first: int = 0,
) -> Drawn:
    """Draw from a block of rows whose first row has index `first` in the table; `counted` marks rows that may be
    fitted."""
    may = ~trusted if counted is None else ~trusted & counted
    return Drawn(
        _lowest(seed, first + np.flatnonzero(may), most), _lowest(seed, first + np.flatnonzero(trusted), most // 2)
    )


def merged(seed: int, most: int, parts: Iterable[Drawn]) -> Drawn:
    """The sample of the table, from the samples of its blocks.

    >>> trusted = np.arange(100_000) % 3 == 0
    >>> blocks = [drawn(0, FIT, trusted[first : first + 40_000], first=first) for first in (0, 40_000, 80_000)]
    >>> bool(np.all(merged(0, FIT, blocks).rows == drawn(0, FIT, trusted).rows))
    True
    """
    none = np.zeros(0, np.int64)
    noisy, gold = none, none
    for part in parts:
        noisy = _lowest(seed, np.concatenate([noisy, part.noisy]), most)
        gold = _lowest(seed, np.concatenate([gold, part.gold]), most // 2)
    return Drawn(noisy, gold)


def learned_from(
    seed: int, most: int, trusted: Bool[np.ndarray, " rows"], counted: Bool[np.ndarray, " rows"] | None = None
) -> Int[np.ndarray, " some"]:
    """The sample of a whole table: all rows if they can all be fitted."""
    return np.arange(len(trusted)) if len(trusted) <= most else drawn(seed, most, trusted, counted).rows


def with_apart(seed: int, most: int, of_table: Drawn, rows: int, apart: int) -> Int[np.ndarray, " some"]:
    """The sample of a table of `rows` rows followed by `apart` trusted rows; `of_table` is the sample of the table
    alone.
    """
    if rows + apart <= most:
        return np.arange(rows + apart)
    return merged(seed, most, [of_table, drawn(seed, most, np.ones(apart, bool), first=rows)]).rows


def _lowest(seed: int, rows: Int[np.ndarray, " rows"], most: int) -> Int[np.ndarray, " some"]:
    if len(rows) <= most:
        return rows
    return np.sort(rows[np.argpartition(numbers(seed, rows.astype(np.uint64)), most)[:most]])
