"""Probabilities that people bring from a model of their own: a row for each row, a column for each class.

An npy file, an npz file with one array (or one called pred_probs), or a table. The columns of a table are named by
class; columns of any other names are in the order of the sorted classes.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from proxbi.cleaning.files.formats import Npz, Parquet, load_numpy, read
from proxbi.cleaning.files.places import ending, require_readable
from proxbi.cleaning.inputs.checks import Where, by_index, checked_probabilities

if TYPE_CHECKING:
    import pandas as pd

ARRAYS = (".npy", ".npz")
NAME = "pred_probs"


def read_probabilities(path: Path, rows: int, classes: np.ndarray) -> Float[np.ndarray, "rows classes"]:
    """The probabilities for each row, checked; the columns in the order of the classes."""
    table, where = _table(path)
    return checked_probabilities(table, rows, classes, str(path), where)


def _table(path: Path) -> "tuple[np.ndarray | pd.DataFrame, Where]":
    require_readable(path)
    if ending(path) in ARRAYS:
        return _array(load_numpy(path, str(path)), str(path)), by_index
    source = read(path)
    if isinstance(source, Npz):  # from a pipe
        return _array(source.arrays, source.name), by_index
    index = source.index if isinstance(source, Parquet) else [""]
    return source.frame.drop(columns=[name for name in index if name in source.frame]), source.where


def _array(found: np.ndarray | dict[str, np.ndarray], name: str) -> np.ndarray:
    if isinstance(found, np.ndarray):
        return found
    if NAME in found:
        return found[NAME]
    if len(found) != 1:
        raise ValueError(f"{name} must have one array, or one called {NAME!r}, and has {', '.join(map(repr, found))}.")
    return next(iter(found.values()))
