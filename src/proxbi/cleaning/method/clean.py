"""The label cleaner: from rows with partly wrong labels to a weight and a quality for each.

1. `samples.py` solves the bilevel problem of `bilevel.py` on samples, once for each half of the trusted rows.
2. `selection.py` lets the weights that come of it compete with simpler ones on trusted rows held out: does it matter?
3. `scoring.py` has all rows judged by learners that have not seen their labels, and `decision.py` decides.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from proxbi.cleaning.method import samples, selection, summary
from proxbi.cleaning.method.free import FEWEST, Free
from proxbi.cleaning.method.kernel import typical_distance
from proxbi.cleaning.method.randomness import stream
from proxbi.cleaning.method.scoring import Judged, judge_all
from proxbi.cleaning.method.table import Table, checked
from proxbi.cleaning.method.voting import judge_votes
from proxbi.cleaning.method.weightings import MEANING_OF_FREE, NOISY, PLAIN_FREE, WEIGHTINGS, Weighting
from proxbi.cleaning.result import Cleaned

Progress = Callable[[str, float], None]


def clean(
    features: Float[np.ndarray, "rows columns"],
    labels: Int[np.ndarray, " rows"],
    classes: int,
    *,
    trusted: Bool[np.ndarray, " rows"] | None = None,
    groups: Int[np.ndarray, " rows"] | None = None,
    sample_weight: Float[np.ndarray, " rows"] | None = None,
    pred_probs: Float[np.ndarray, "rows classes"] | None = None,
    votes: Int[np.ndarray, "rows annotators"] | None = None,
    before: Int[np.ndarray, " rows"] | None = None,
    weights: Literal["auto", "free"] = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Cleaned:
    """Find wrong labels.

    **Arguments:**

    - `features`: finite, and scaled so that distances mean something.
    - `labels`: class indices 0..classes-1, some of them wrong.
    - `trusted`: the rows whose labels are right. Without any, noisy rows judge noisy rows, and a warning says so.
    - `groups`: the annotator or source 0, 1, ... of each row; each has a noise rate of its own.
    - `sample_weight`: how often each row counts.
    - `pred_probs`: out-of-fold probabilities of a model of one's own, one more belief about each row; NaN where there
      are none.
    - `votes`: of several annotators, classes or -1 where there is none. `labels` are then what the votes alone say
      (`votes.by_votes_alone`), of trusted rows their true classes, and of rows without any vote nothing.
    - `before`: of trusted rows that a person decided, having seen their labels: these labels; -1 for all other rows.
    - `weights`: "auto", few numbers for all rows together; or "free", the paper's one number for each row.
    - `seed`: the same seed gives the same answer.
    - `progress`: called with a stage and the share of the work that is done.

    >>> draw = np.random.default_rng(0)
    >>> labels = np.arange(120) % 2
    >>> features = draw.normal(size=(120, 2)) + 6 * labels[:, None]
    >>> labels[[7, 50]] = 1 - labels[[7, 50]]
    >>> np.flatnonzero(clean(features, labels, 2, trusted=np.arange(120) >= 80).issue)
    array([ 7, 50])
    """
    table = checked(features, labels, classes, trusted, groups, sample_weight, pred_probs, votes, before)
    _check_weights(weights, sample_weight is not None, len(table.judges))
    say = progress or (lambda stage, share: None)
    # The threads of the BLAS below JAX, and those of JAX, wait for one another where others use the machine.
    with threadpool_limits(limits=1, user_api="blas"):
        return _clean(table, Free() if weights == "free" else None, groups is not None, seed, say)


def _check_weights(weights: str, weighted: bool, trusted: int) -> None:
    if weights not in ("auto", "free"):
        raise ValueError(f'weights must be "auto" or "free", got {weights!r}.')
    if weights == "free" and weighted:
        raise ValueError(
            'sample_weight must not be given with weights="free", which sets the weight of each row itself.'
        )
    if weights == "free" and trusted < FEWEST:
        raise ValueError(f'trusted must mark at least {FEWEST} rows for weights="free", got {trusted}.')


def _clean(table: Table, free: Free | None, grouped: bool, seed: int, say: Progress) -> Cleaned:
    draw = stream(seed)
    say("solving for the settings", 0.0)
    roles = samples.assign(table, draw)
    unit = typical_distance(table.features[roles.fit])
    tuned = samples.tune(table, roles, unit)
    say("comparing ways to weigh rows", 0.5)
    wanted = Weighting("free", PLAIN_FREE, MEANING_OF_FREE, True, free) if free else None
    # Decided rows tell how to judge, but what is measured on them holds for rows that were picked, not for all.
    fair = samples.assign(table, draw, table.judges) if table.decided.any() else roles
    compared = [*WEIGHTINGS, *([wanted] if wanted else [])]
    verdict = selection.hold(table, fair, unit, tuned[: 2 if len(fair.halves[0]) else 1], compared, wanted)
    say("judging all rows", 0.7)
    settings = samples.average(tuned)
    bandwidth = unit * math.exp(settings["bandwidth"])
    consensus = None
    if table.votes is None:
        judged = judge_all(table, settings, bandwidth, free, draw)
        issue = ~table.trusted & (judged.quality < 0.5)
    else:
        judged, consensus = judge_votes(table, settings, bandwidth, free, draw)
        issue = ~table.trusted & table.voted & (consensus.label != table.labels)
        table = table._replace(labels=np.where(table.voted, table.labels, consensus.label))
    if not judged.informed:
        verdict = verdict._replace(chosen=NOISY.name, helped=False)
    say("done", 1.0)
    solved = {
        "bandwidth": bandwidth,
        "ridge": math.exp(settings["ridge"]),
        "temperature": judged.temperature,
        "rows fitted": judged.fitted,
        "solver": tuned[0].status.name,
        "seed": seed,
    }
    history = free.history if free else tuned[0].history
    said = summary.sentences(table, tuned, verdict, issue, informed=judged.informed, wanted=wanted is not None)
    rest = {"history": history, "warnings": list(said), "settings": solved, "consensus": consensus}
    return _result(table, judged, verdict, grouped, issue, **rest)


def _result(
    table: Table,
    judged: Judged,
    verdict: selection.Verdict,
    grouped: bool,
    issue: Bool[np.ndarray, " rows"],
    **rest: Any,
) -> Cleaned:
    noisy = ~table.trusted & table.voted
    rate = summary.wrong_share(judged, noisy)
    by_group = summary.wrong_shares("group", table.groups, table.group_count, judged, noisy) if grouped else []
    return Cleaned(
        weight=judged.weight,
        quality=judged.quality,
        issue=issue,
        suggested=np.where(issue, judged.other, table.labels),
        trusted=table.trusted,
        noise_rate=rate,
        noise_by_class=summary.wrong_shares("class", table.labels, table.classes, judged, noisy),
        noise_by_group=by_group,
        scores=verdict.scores,
        chosen=verdict.chosen,
        helped=verdict.helped,
        removal=verdict.removal,
        history=rest["history"],
        warnings=rest["warnings"],
        settings={"noise rate": rate.estimate, **rest["settings"]},
        consensus=rest["consensus"],
        review=judged.review,
        decided=table.decided,
    )
