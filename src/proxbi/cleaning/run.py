"""Inputs -> what is known about their labels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from proxbi.cleaning.inputs.prepare import Inputs
from proxbi.cleaning.method.clean import clean
from proxbi.cleaning.method.votes import Votes, by_votes_alone, consensus
from proxbi.cleaning.result import Cleaned, Consensus

FEWEST_ROWS = 50
"""With fewer, and none trusted, labels cannot be judged by one another."""

TOO_FEW = (
    f"No row is trusted and there are fewer than {FEWEST_ROWS}, too few to judge labels by one another: all are kept "
    "as they are."
)
NOTHING_LEFT = (
    "Without the flagged rows there are no two classes left: the features may say nothing about the labels. The final "
    "classifier is fitted to all rows."
)


def clean_inputs(
    inputs: Inputs,
    *,
    weights: Literal["auto", "free"],
    seed: int,
    fit_all: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Cleaned:
    """Run the method, unless there is too little to go by; the warnings are those of the inputs and its own."""
    counted = float(np.sum(inputs.labelled if inputs.weight is None else inputs.weight * inputs.labelled))
    if inputs.trusted is None and counted < FEWEST_ROWS:
        cleaned = replace(Cleaned.unknown(inputs.labels, TOO_FEW, seed=seed), consensus=_by_votes_alone(inputs))
    else:
        votes = {} if inputs.votes is None else {"votes": inputs.votes}
        cleaned = clean(
            inputs.features,
            inputs.labels,
            len(inputs.classes),
            trusted=inputs.trusted,
            groups=inputs.groups,
            sample_weight=inputs.weight,
            weights=weights,
            learn_from=inputs.learn_from,
            fit_all=fit_all,
            seed=seed,
            progress=progress,
            pred_probs=inputs.pred_probs,
            **votes,
            before=inputs.before,
        )
    said = [] if len(np.unique(inputs.labels[~cleaned.issue])) > 1 else [NOTHING_LEFT]
    return replace(cleaned, warnings=[*inputs.warnings, *cleaned.warnings, *said])


def _by_votes_alone(inputs: Inputs) -> Consensus | None:
    """What can be said without the features."""
    if inputs.votes is None:
        return None
    shares, annotators = by_votes_alone(Votes.of(inputs.votes), len(inputs.classes))
    return consensus(inputs.votes, shares, annotators)
