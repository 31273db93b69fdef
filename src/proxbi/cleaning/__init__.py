"""Label cleaning as a bilevel problem: the paper's, and a cleaner to use.

`LabelCleaner` is for scikit-learn code, `clean_file` is what `proxbi clean` does, `clean` the method on plain arrays.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from proxbi.cleaning.problem import hyper_cleaning as hyper_cleaning

if TYPE_CHECKING:
    from proxbi.cleaning.estimator.label_cleaner import CleaningWarning as CleaningWarning
    from proxbi.cleaning.estimator.label_cleaner import LabelCleaner as LabelCleaner
    from proxbi.cleaning.estimator.scoring import TrustedScorer as TrustedScorer
    from proxbi.cleaning.files.job import clean_file as clean_file
    from proxbi.cleaning.method.clean import clean as clean
    from proxbi.cleaning.result import Cleaned as Cleaned

# Imported when first asked for: they need scikit-learn, which the paper's problem does not.
_LATER = {
    "LabelCleaner": "estimator.label_cleaner",
    "CleaningWarning": "estimator.label_cleaner",
    "TrustedScorer": "estimator.scoring",
    "clean": "method.clean",
    "Cleaned": "result",
    "clean_file": "files.job",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
