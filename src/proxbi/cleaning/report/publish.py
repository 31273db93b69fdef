"""The report of cleaned inputs: shared by `LabelCleaner.report` and `proxbi clean --report`."""

from collections.abc import Sequence
from importlib.metadata import version
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from proxbi.cleaning.inputs.features import Use
from proxbi.cleaning.inputs.prepare import Inputs
from proxbi.cleaning.report.page import Run, Step, write_report
from proxbi.cleaning.result import Cleaned

if TYPE_CHECKING:
    import pandas as pd

REPORTED = ("proxbi", "jax", "numpy", "scikit-learn", "pandas")
CHANNELS = (1, 3, 4)
"""Channels of images: grey, colour, colour with opacity."""


def publish(
    path: str | PathLike[str],
    inputs: Inputs,
    cleaned: Cleaned,
    *,
    X: Any = None,
    ids: Sequence[Any] | None = None,
    id_name: str = "id",
    places: Int[np.ndarray, " rows"] | None = None,
    earlier: Sequence[dict[str, Any]] | None = None,
    title: str,
    run: Run,
    steps: Sequence[Step] = (),
    unused: Sequence[Use] = (),
    show_rows: bool = True,
) -> None:
    """Write the report to `path`; the columns of `X`, or the images, are shown beside the suspects. `ids` are what the
    rows are called, and `id_name` is what these are; `unused` are columns that are no features. `places` are the
    numbers that the rows have in the table, where they are some of it, and `earlier` are the decisions about it.
    """
    if X is not None and len(X) != inputs.rows:
        raise ValueError(f"X must have the {inputs.rows} rows that were cleaned, got {len(X)}.")
    apart = len(inputs.labels) - inputs.rows
    named = ids if ids is None else [*ids, *(f"trusted row {place}" for place in range(apart))]
    write_report(
        path,
        cleaned,
        labels=[str(label) for label in inputs.classes.tolist()],
        given=inputs.labels,
        before=inputs.before,
        ids=named,
        places=None if places is None else np.append(places, np.full(apart, -1)),
        earlier=earlier,
        id_name=id_name,
        groups=inputs.group_names or None,
        group_of=inputs.groups,
        images=_images(X, apart),
        frame=_frame(X, apart),
        features=_features(inputs, X, apart),
        votes=inputs.votes,
        annotators=[str(name) for name in inputs.annotators],
        uses=[*inputs.encoder.uses, *unused],
        steps=steps,
        title=title,
        run=run._replace(versions=versions()),
        show_rows=show_rows,
    )


def versions() -> dict[str, str]:
    """The versions of the packages that the result may depend on."""
    return {name: version(name) for name in REPORTED}


# Trusted rows given separately are counted in the report but never shown as suspects: blank images and copies of the
# first row stand for them.


def _features(inputs: Inputs, X: Any, apart: int) -> np.ndarray | None:
    """The rows as numbers: as they were cleaned, or encoded again from X, which lacks the rows given separately."""
    if len(inputs.features) == len(inputs.labels):
        return inputs.features
    if X is None or apart:
        return None
    return inputs.encoder.transform(X)


def _images(X: Any, apart: int) -> np.ndarray | None:
    """Grey or colour images [n, height, width] or [n, height, width, 3], also from [n, channels, height, width]; a
    channel for opacity is dropped.
    """
    if not isinstance(X, np.ndarray) or X.ndim not in (3, 4):
        return None
    channels_first = X.ndim == 4 and X.shape[3] not in CHANNELS and X.shape[1] in CHANNELS
    pictures = np.moveaxis(X, 1, 3) if channels_first else X
    if pictures.ndim == 4:
        if pictures.shape[3] not in CHANNELS:
            return None
        pictures = pictures[..., 0] if pictures.shape[3] == 1 else pictures[..., :3]
    return np.concatenate([pictures, np.zeros((apart, *pictures.shape[1:]), pictures.dtype)]) if apart else pictures


def _frame(X: Any, apart: int) -> "pd.DataFrame | None":
    if not hasattr(X, "iloc"):
        return None
    # Not a row of NaN, which would turn integers into floats.
    return X.iloc[np.r_[0 : len(X), np.zeros(apart, int)]].reset_index(drop=True)
