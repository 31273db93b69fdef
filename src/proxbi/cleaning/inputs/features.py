"""A table or an array -> a matrix of floats without gaps, on which distances make sense.

- A number x becomes z / sqrt(1 + (z/4)^2) with z = (x - median) / s, where s is the distance between the quartiles, in
  the unit that makes it the standard deviation of a normal distribution. So two rows are about 2 apart (squared), and
  a few very large values do not crowd all others together.
  (Holzmüller, Grinsztajn and Steinwart, Better by default: strong pre-tuned MLPs and boosted trees on tabular data,
  NeurIPS 2024.)
- Columns that share one scale, as pixels or the coordinates of an embedding do, are centred and divided by one number:
  a pixel that is nearly always black must not count as much as one in the middle.
- A missing number becomes the median, and a column of its own says that it was missing.
- A category becomes one column of zeros and ones for each of its most frequent values: two rows of different
  categories are 2 apart as well. Missing is a value too, and so are all rare values together.
- Dates (as such, or text in the form 2024-05-31) count as seconds, truth values as 0 and 1; a column of vectors (an
  embedding) as its coordinates.
"""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.inputs.checks import Where, by_index
from proxbi.cleaning.inputs.columns import Column, columns_of, numbers, texts

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 32
"""Values of a category that get a column of their own; all others share one."""
SHARED_SCALE_COLUMNS = 16
"""Fewer numeric columns than this never count as sharing one scale: they are measurements of different things."""
NORMAL_QUARTILES = 1.349
"""The distance between the quartiles of a normal distribution, in standard deviations."""
QUARTILE_ROWS = 100_000
"""Quartiles are taken of so many rows where there are more."""
BOUND = 4.0
"""No single number gets farther from its median than this."""

Weight = Float[np.ndarray, " rows"] | None


class _Facts(NamedTuple):
    """Of a numeric column."""

    mean: float = 0.0
    deviation: float = 0.0
    """0: it is constant."""
    extent: float = 0.0
    quartiles: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gaps: bool = False
    """Whether some but not all values are missing."""


class _Number(NamedTuple):
    centre: float
    scale: float
    """0: constant, and left out."""
    bounded: bool
    fill: float
    flagged: bool
    """Whether a column says where it was missing."""

    @property
    def width(self) -> int:
        return (self.scale > 0) + self.flagged

    def write(self, column: Column, out: Float[np.ndarray, "rows width"], where: Where) -> None:
        values = numbers(column, where)
        missing = np.isnan(values)
        if self.scale > 0:
            z = (np.where(missing, self.fill, values) - self.centre) / self.scale
            out[:, 0] = z / np.hypot(1, z / BOUND) if self.bounded else z
        if self.flagged:
            out[:, -1] = missing


class _Category(NamedTuple):
    levels: tuple[str, ...] = ()
    other: bool = False
    """Whether there are values beside the levels, which share one column."""
    missing: bool = False

    @property
    def width(self) -> int:
        return len(self.levels) + self.other + self.missing

    def write(self, column: Column, out: Float[np.ndarray, "rows width"], where: Where) -> None:
        import pandas as pd

        text, missing = texts(column, where)
        place = pd.Index(self.levels, dtype="str").get_indexer(text)
        out[:] = 0
        known = ~missing & (place >= 0)
        out[known, place[known]] = 1
        if self.other:
            out[~missing & (place < 0), len(self.levels)] = 1
        if self.missing:
            out[missing, -1] = 1


class Use(NamedTuple):
    """What became of a column."""

    name: str
    kind: str
    """What it is taken as; empty if it is not used."""
    note: str = ""


class Encoder:
    """Learns from a table how to make numbers of it, and does so for it and for others with the same columns.

    >>> table = np.array([[1.0, 10.0], [2.0, np.nan], [3.0, 30.0], [4.0, 20.0]])
    >>> Encoder().fit(table).transform(table).round(1)
    array([[-0.7, -0.7,  0. ],
           [ 0. ,  0. ,  1. ],
           [ 0.7,  0.7,  0. ],
           [ 1.3,  0. ,  0. ]], dtype=float32)

    After `fit`, `warnings` has a sentence for each thing a user should know: columns left out, values lumped together;
    and `uses` says what became of each column.
    """

    def __init__(self, where: Where = by_index) -> None:
        self._where = where
        self.warnings: list[str] = []
        self._plans: list[_Number | _Category] = []
        self.uses: list[Use] = []

    def fit(self, table: "np.ndarray | pd.DataFrame", weight: Weight = None, where: Where | None = None) -> "Encoder":
        """Learn the scales and categories from the rows, each counted `weight` times. Infinite numbers are an error, by
        column and row; `where` names these rows (as in all messages, unless given).
        """
        where = where or self._where
        columns = list(columns_of(table, where))
        self.warnings = []
        plans: dict[int, _Number | _Category] = {}
        for block in dict.fromkeys(column.block for column in columns if column.block is not None):
            facts = {i: _facts(column, weight, where) for i, column in enumerate(columns) if column.block == block}
            if _is_picture(table) or block or _share_a_scale(list(facts.values())):
                plans |= _alike(facts)
            else:
                plans |= {i: _single(each) for i, each in facts.items()}
                self._warn_of_constants([columns[i] for i in facts if plans[i].width == 0])
        plans |= {i: self._category(column, weight, where) for i, column in enumerate(columns) if column.block is None}
        self._plans = [plans[i] for i in range(len(columns))]
        self.uses = _uses(table, columns, self._plans)
        if self.width == 0:
            raise ValueError("All features are constant: they do not distinguish any rows.")
        return self

    def naming(self, where: Where) -> "Encoder":
        """The same with other names for rows in messages."""
        other = copy(self)
        other._where = where
        return other

    @property
    def width(self) -> int:
        """Columns of the matrix that `transform` makes."""
        return sum(plan.width for plan in self._plans)

    def transform(
        self, table: "np.ndarray | pd.DataFrame", where: Where | None = None
    ) -> Float[np.ndarray, "rows width"]:
        """The matrix, in float32; `where` names the rows in messages (as in `fit`, unless given)."""
        where = where or self._where
        out = np.empty((len(table), self.width), np.float32)
        start = 0
        for plan, column in zip(self._plans, columns_of(table, where), strict=True):
            plan.write(column, out[:, start : start + plan.width], where)
            start += plan.width
        return out

    def _warn_of_constants(self, columns: Sequence[Column]) -> None:
        self.warnings += [
            f"Column {column.name!r} is not used: its numbers are alike in their first 16 digits, as ids are."
            for column in columns
            if _differs_beyond_digits(column)
        ]
        names = [column.name for column in columns if not _differs_beyond_digits(column)]
        if names:
            shown = ", ".join(map(repr, names[:3])) + (" and others" if len(names) > 3 else "")
            which = f"Column {shown} is" if len(names) == 1 else f"{len(names)} columns ({shown}) are"
            self.warnings.append(f"{which} constant and not used.")

    def _category(self, column: Column, weight: Weight, where: Where) -> _Category:
        import pandas as pd

        text, missing = texts(column, where)
        counted = np.ones(len(text)) if weight is None else weight
        seen = ~missing & (counted > 0)
        counts = pd.Series(counted[seen]).groupby(text[seen]).sum()
        gaps = bool(missing[counted > 0].any())
        if len(counts) + gaps < 2:
            self._warn_of_constants([column])
            return _Category()
        repeated = counts[counts > 1]  # a value seen once says nothing about other rows
        if len(repeated) == 0:
            self.warnings.append(f"Column {column.name!r} is not used: its values are all different, as names or ids.")
            return _Category()
        levels = sorted(repeated.index, key=lambda level: (-repeated[level], level))[:MOST_CATEGORIES]
        if len(levels) < len(counts):
            self._warn_of_lumping(column.name, counts.index, len(levels))
        return _Category(tuple(levels), len(levels) < len(counts), gaps)

    def _warn_of_lumping(self, name: str, values: "pd.Index", told_apart: int) -> None:
        import pandas as pd

        strange = values[pd.to_numeric(values, errors="coerce").isna()]
        few = 0 < len(strange) <= len(values) // 10
        reason = f" (it is taken as text because of {strange[0]!r})" if few else ""
        self.warnings.append(
            f"Column {name!r} has {len(values):,} different values{reason}; only the {told_apart} most frequent are "
            "kept apart."
        )


def _uses(
    table: "np.ndarray | pd.DataFrame", columns: Sequence[Column], plans: Sequence[_Number | _Category]
) -> list[Use]:
    """What became of each column; the numbers of an array, or of a column of vectors, count as one."""
    if isinstance(table, np.ndarray):
        return [_vector("the numbers of X", plans)]
    found: dict[str, Use] = {}
    for place, (column, plan) in enumerate(zip(columns, plans, strict=True)):
        if column.block:
            ours = [each for each, other in zip(plans, columns, strict=True) if other.block == column.block]
            found.setdefault(column.block, _vector(column.block, ours))
        else:
            found[str(place)] = _use(column, plan)
    return list(found.values())


def _vector(name: str, plans: Sequence[_Number | _Category]) -> Use:
    constant = sum(plan.width == 0 for plan in plans)
    return Use(name, f"{len(plans):,} numbers", f"{constant:,} of them constant, and not used" if constant else "")


def _use(column: Column, plan: _Number | _Category) -> Use:
    if plan.width == 0:
        alike = isinstance(plan, _Number) and not _differs_beyond_digits(column)
        constant = alike or len(set(column.values.dropna().astype(str))) < 2
        return Use(column.name, "", "constant" if constant else "all values differ, as those of names and ids do")
    if isinstance(plan, _Number):
        return Use(column.name, "number", "some are missing" if plan.flagged else "")
    others = "; the others are lumped together" if plan.other else ""
    return Use(column.name, "category", f"{len(plan.levels):,} values are kept apart{others}")


def _differs_beyond_digits(column: Column) -> bool:
    """Whether whole numbers too large for float64 only look constant."""
    import pandas as pd

    kind = getattr(column.values, "dtype", np.dtype(float)).kind
    large = kind in "iu" and abs(float(column.values.max())) >= 2.0**53
    return (kind == "O" or large) and len(pd.unique(column.values)) > 1


def _facts(column: Column, weight: Weight, where: Where) -> _Facts:
    values = numbers(column, where)
    missing = np.isnan(values)
    counted = np.ones(len(values), bool) if weight is None else weight > 0
    known = values if counted.all() and not missing.any() else values[~missing & counted]
    gaps = bool(known.size and missing[counted].any())
    size = float(np.max(np.abs(known), initial=0.0))
    if size == 0 or known.min() == known.max():
        return _Facts(gaps=gaps)
    unit = known / size  # the square of a very large number would overflow
    by = None if weight is None else weight[~missing & counted]
    mean = np.average(unit, weights=by)
    deviation = np.sqrt(np.average((unit - mean) ** 2, weights=by))
    some = _drawn(known.size)
    parts = None if by is None else by[some]
    low, middle, high = np.quantile(known[some], (0.25, 0.5, 0.75), method="inverted_cdf", weights=parts)
    quartiles = (float(low), float(middle), float(high))
    return _Facts(float(size * mean), float(size * deviation), float(size * np.ptp(unit)), quartiles, gaps)


def _drawn(rows: int) -> slice | Int[np.ndarray, " some"]:
    """All rows, or `QUARTILE_ROWS` drawn at random, always the same: every k-th would mislead where rows take turns."""
    return slice(None) if rows <= QUARTILE_ROWS else np.random.default_rng(0).integers(rows, size=QUARTILE_ROWS)


def _single(facts: _Facts) -> _Number:
    low, middle, high = facts.quartiles
    # Half of the values may be the same: then only the standard deviation is left.
    scale = (high - low) / NORMAL_QUARTILES if high > low else facts.deviation
    return _Number(middle, scale if facts.deviation > 0 else 0.0, True, middle, facts.gaps)


def _alike(facts: dict[int, _Facts]) -> dict[int, _Number]:
    """The same scale for all: the root of their mean variance, so that distances are what they are for single
    scales.
    """
    variances = np.array([each.deviation**2 for each in facts.values() if each.deviation > 0])
    shared = float(np.sqrt(np.mean(variances))) if variances.size else 0.0
    return {
        i: _Number(each.mean, shared if each.deviation > 0 else 0.0, False, each.quartiles[1], each.gaps)
        for i, each in facts.items()
    }


def _is_picture(table: Any) -> bool:
    """Arrays of bytes and of more than two dimensions are images."""
    return isinstance(table, np.ndarray) and (table.ndim > 2 or table.dtype == np.uint8)


def _share_a_scale(facts: Sequence[_Facts]) -> bool:
    """Whether three of four columns that vary at all have at least an eighth of the largest range: so it is with
    pixels, even those at the border, and with embeddings, but not with age, income and blood pressure.
    """
    extents = np.array([each.extent for each in facts if each.deviation > 0])
    if len(facts) < SHARED_SCALE_COLUMNS or extents.size == 0:
        return False
    return bool(np.mean(8 * extents >= extents.max()) >= 0.75)
