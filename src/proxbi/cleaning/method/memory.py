"""Whether there is memory to learn from so many rows, checked before the work begins.

An estimate: peaks measured with 10 and 60 classes, 20 columns and 30,000 to 120,000 rows were 8 to 25 % below it.
"""

import jax

from proxbi._memory import free_memory
from proxbi.cleaning.method.drawing import FIT
from proxbi.cleaning.method.scoring import LANDMARKS

KERNEL = 8 * LANDMARKS
"""Bytes for each fitted row: its kernel values, in single precision, twice."""
COLUMN = 36
"""Bytes for each fitted row and column: for one and a half times as many rows, the values as in the file, in a data
frame, and twice in single precision."""
CLASS = 500
"""Bytes for each row and class, of `FIT` rows at most: scores and probabilities under several calibrations. With more
rows, calibrations use some of them."""
GIB = 2**30


def require_memory(rows: int, classes: int, columns: int) -> None:
    """Raise an error if learning from so many rows takes more memory than is free, with a number of rows that fits.

    >>> require_memory(10**9, classes=10, columns=20)
    Traceback (most recent call last):
    MemoryError: learning from 1,000,000,000 rows takes about ... GiB of memory, and ... GiB are free: ...
    """
    needed, free = needed_memory(rows, classes, columns), free_memory(jax.local_devices()[0], 1)
    if needed > free:
        raise MemoryError(
            f"learning from {rows:,} rows takes about {needed / GIB:,.1f} GiB of memory, and {free / GIB:,.1f} GiB are "
            f"free: about {int(rows * free / needed):,} would fit. Set learn_from (--learn-from) to fewer."
        )


def needed_memory(rows: int, classes: int, columns: int) -> float:
    """In bytes, in addition to the table itself.

    >>> f"{needed_memory(30_000, classes=10, columns=20) / GIB:.2f} GiB"
    '0.50 GiB'
    """
    return float(rows * (KERNEL + COLUMN * columns) + min(rows, FIT) * CLASS * classes)
