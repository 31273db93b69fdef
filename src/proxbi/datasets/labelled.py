"""What a labelled dataset is."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Real


class Labelled(NamedTuple):
    """Rows of features and their class labels 0, 1, ...

    Example: `digits`.
    """

    features: Real[np.ndarray, "rows features"]
    """A row for each example."""
    labels: Int[np.ndarray, " rows"]
    """Its class, 0, 1, ..."""

    def take(self, rows: Int[np.ndarray, " taken"] | slice) -> "Labelled":
        """These rows."""
        return Labelled(self.features[rows], self.labels[rows])
