"""Linear models that choose their penalties: scikit-learn estimators that solve a bilevel problem.

`TunedLinearRegression` and `TunedLogisticRegression` choose one penalty for all coefficients, one for each group or one
for each feature, by cross-validation; see docs/linear_model.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxbi.linear_model.estimators import TunedLinearRegression as TunedLinearRegression
    from proxbi.linear_model.estimators import TunedLogisticRegression as TunedLogisticRegression

_LATER = ("TunedLinearRegression", "TunedLogisticRegression")  # they need scikit-learn


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.estimators"), name)
