"""The input of the report: the result, and what is known about the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from proxbi.cleaning.result import Cleaned

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rows:
    """The rows, as `write_report` takes them; each array has one entry per row."""

    cleaned: Cleaned
    labels: Sequence[str]
    given: Int[np.ndarray, " rows"]
    ids: Sequence[Any] | None = None
    groups: Sequence[str] | None = None
    group_of: Int[np.ndarray, " rows"] | None = None
    images: np.ndarray | None = None
    frame: "pd.DataFrame | None" = None
    id_name: str = "id"
    features: Float[np.ndarray, "rows columns"] | None = None
    before: Int[np.ndarray, " rows"] | None = None
    places: Int[np.ndarray, " rows"] | None = None
    earlier: Sequence[dict[str, Any]] | None = None
    votes: Int[np.ndarray, "rows annotators"] | None = None
    annotators: Sequence[str] = ()

    def __post_init__(self) -> None:
        n = len(self.cleaned.weight)
        for name in ("given", "ids", "group_of", "images", "frame", "features", "before", "places", "votes"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise ValueError(f"{name} must have one entry for each of the {n} rows, got {len(value)}.")
        _check_codes("given", self.given, "labels", self.labels)
        if (self.groups is None) != (self.group_of is None):
            raise ValueError("groups and group_of must be given together.")
        if self.groups is not None and self.group_of is not None:
            _check_codes("group_of", self.group_of, "groups", self.groups)
        if self.votes is not None and self.votes.shape[1:] != (len(self.annotators),):
            raise ValueError(f"annotators must name the {self.votes.shape[1]} columns of votes.")
        if self.images is not None and (self.images.ndim not in (3, 4) or self.images.shape[3:] not in ((), (3,))):
            raise ValueError(f"images must be [n, height, width] or [n, height, width, 3], got {self.images.shape}.")

    def called(self, row: int) -> str:
        """The name of a row: its id, or its number, from 0."""
        return str(row if self.ids is None else self.ids[row])

    def place(self, row: int) -> int:
        """What decisions call a row: its number in the file, from 0."""
        return row if self.places is None else int(self.places[row])


def _check_codes(name: str, codes: Int[np.ndarray, " rows"], of: str, names: Sequence[str]) -> None:
    wrong = np.flatnonzero((codes < 0) | (codes >= len(names)))
    if wrong.size:
        raise ValueError(
            f"{name} must be in 0..{len(names) - 1}, the places in {of}, got {codes[wrong[0]]} at row {wrong[0]}."
        )
