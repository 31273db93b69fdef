"""Whether there is room to learn from so many rows, asked before the work begins."""

import jax

from proxbi._memory import free_memory
from proxbi.cleaning.method.scoring import LANDMARKS

KERNEL = 8 * LANDMARKS
"""Bytes for each row that is fitted: its kernel values, in single precision, twice."""
CLASS = 650
"""Bytes for each row and class: scores and probabilities in double precision, under several calibrations (measured)."""
COLUMN = 36
"""Bytes for each row and column: of one and a half times as many rows as are fitted, their values as they are in the
file, in a data frame, and twice in single precision."""
GIB = 2**30


def require_memory(rows: int, classes: int, columns: int) -> None:
    """Raise an error if learning from so many rows takes more memory than is free, with a number of rows that fits.

    >>> require_memory(10**9, classes=10, columns=20)
    Traceback (most recent call last):
    MemoryError: learning from 1,000,000,000 rows takes about ... GiB of memory, and ... GiB are free: ...
    """
    each, free = bytes_of(classes, columns), free_memory(jax.devices()[0], 1)
    if rows * each > free:
        raise MemoryError(
            f"learning from {rows:,} rows takes about {rows * each / GIB:,.1f} GiB of memory, and {free / GIB:,.1f} "
            f"GiB are free: at most {int(free / each):,} would fit. Set learn_from (--learn-from) to fewer."
        )


def bytes_of(classes: int, columns: int) -> int:
    """Of memory that each row takes. The kernel values and the scores do not take theirs at the same time."""
    return max(KERNEL, CLASS * classes) + COLUMN * columns
