"""The report of inputs that were cleaned: what `LabelCleaner.report` and `proxbi clean --report` share."""

from collections.abc import Sequence
from importlib.metadata import version
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from proxbi.cleaning.inputs.prepare import Inputs
from proxbi.cleaning.report.page import write_report
from proxbi.cleaning.result import Cleaned

if TYPE_CHECKING:
    import pandas as pd

REPORTED = ("proxbi", "jax", "numpy", "scikit-learn", "pandas")


def publish(
    path: str | PathLike[str],
    inputs: Inputs,
    cleaned: Cleaned,
    *,
    X: Any = None,
    ids: Sequence[Any] | None = None,
    title: str,
    command: str | None = None,
    seed: int,
) -> None:
    """Write the report to `path`; the columns of `X`, or the images, are shown beside the suspects."""
    apart = len(inputs.labels) - inputs.rows
    named = ids if ids is None else [*ids, *(f"trusted row {place}" for place in range(apart))]
    write_report(
        path,
        cleaned,
        labels=[str(label) for label in inputs.classes.tolist()],
        given=inputs.labels,
        ids=named,
        groups=inputs.group_names or None,
        group_of=inputs.groups,
        images=_images(X, apart),
        frame=_frame(X, apart),
        title=title,
        command=command,
        seed=seed,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Of the packages that the result may depend on."""
    return {name: version(name) for name in REPORTED}


# Trusted rows given apart are counted in the report but never shown as suspects: blank images and copies of the first
# row stand for them.


def _images(X: Any, apart: int) -> np.ndarray | None:
    if not isinstance(X, np.ndarray) or X.ndim not in (3, 4) or X.shape[3:] not in ((), (1,), (3,)):
        return None
    pictures = X[..., 0] if X.shape[3:] == (1,) else X
    return np.concatenate([pictures, np.zeros((apart, *pictures.shape[1:]), pictures.dtype)]) if apart else pictures


def _frame(X: Any, apart: int) -> "pd.DataFrame | None":
    if not hasattr(X, "iloc"):
        return None
    # Not a row of gaps, which would make floats of integers.
    return X.iloc[np.r_[0 : len(X), np.zeros(apart, int)]].reset_index(drop=True)
