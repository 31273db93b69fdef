"""A cleaner of thirty lines in place of the real one, so that what is around it is tested in seconds.

Tests run with it, and again, marked slow, with the real one.
"""

from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from proxbi.cleaning.method.votes import Votes, by_votes_alone, consensus
from proxbi.cleaning.result import Cleaned, Interval, NoiseShare, OuterStep, Removal, Score

NEIGHBOURS = 10


def clean(
    features,
    labels,
    classes,
    *,
    trusted=None,
    groups=None,
    sample_weight=None,
    pred_probs=None,
    votes=None,
    before=None,
    weights="auto",
    learn_from=30_000,
    fit_all=False,
    seed=0,
    progress=None,
):
    """A label is wrong if another one is more frequent among its neighbours."""
    say = progress or (lambda stage, share: None)
    say("asking the neighbours", 0.0)
    gold = np.zeros(len(labels), bool) if trusted is None else trusted
    decided = np.zeros(len(labels), bool) if before is None else before >= 0
    voters = labels if sample_weight is None else np.where(sample_weight > 0, labels, -1)
    near = (
        NearestNeighbors(n_neighbors=min(NEIGHBOURS + 1, len(labels))).fit(features).kneighbors(return_distance=False)
    )
    shares = np.stack([(voters[near] == c).sum(axis=1) for c in range(classes)], axis=1) + 0.1
    quality = shares[np.arange(len(labels)), labels] / shares.sum(axis=1)
    issue = ~gold & (shares.argmax(axis=1) != labels)
    accuracy = float(np.mean(shares.argmax(axis=1) == labels))
    say("done", 1.0)
    return Cleaned(
        weight=np.where(gold, 1.0, quality),
        quality=quality,
        issue=issue,
        suggested=np.where(issue, shares.argmax(axis=1), labels),
        trusted=gold,
        noise_rate=_rate(issue[~gold]),
        noise_by_class=[_row(c, issue[~gold & (labels == c)]) for c in range(classes)],
        noise_by_group=[] if groups is None else [_row(g, issue[~gold & (groups == g)]) for g in set(groups.tolist())],
        scores=[Score(name, accuracy, 0.0, 1.0, 0.0) for name in ("noisy", "bilevel")],
        chosen="bilevel",
        helped=True,
        history=[OuterStep(1, 1.0, 0.1, 1.0, float("nan"), 1)],
        removal=[Removal(0, 1.0, 0.5)],
        warnings=[] if gold.any() else ["No row is trusted."],
        settings={"seed": seed},
        consensus=None if votes is None else _consensus(votes, classes, np.where(gold, labels, -1)),
        review=np.flatnonzero(~gold),
        decided=decided,
    )


def _consensus(votes, classes, known):
    return consensus(votes, *by_votes_alone(Votes.of(votes), classes, known))


def _rate(wrong):
    share = float(np.mean(wrong)) if len(wrong) else 0.0
    reach = 2 / np.sqrt(max(1, len(wrong)))
    return Interval(share, max(0.0, share - reach), min(1.0, share + reach))


def _row(index, wrong):
    return NoiseShare(index, len(wrong), _rate(wrong))


RARELY_REAL = ["stand-in", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.hours])]
"""Outside CI, which compiles the real one for the doctest of the estimator and for the README's example already."""


@contextmanager
def using(name):
    """Let this cleaner do the work."""
    with patch("proxbi.cleaning.run.clean", clean) if name == "stand-in" else nullcontext():
        yield
