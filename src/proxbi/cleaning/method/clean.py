"""The label cleaner: from rows with partly wrong labels to a weight and a quality for each.

1. `tuning.py` solves the bilevel problem of `settings.py` on samples, once for each half of the trusted rows.
2. `contest.py` lets the weights that come of it compete with simpler ones on trusted rows held out, and picks.
3. `judging.py` weighs all rows the way that was picked, and judges each by a fit that has not seen its label.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from proxbi.cleaning.method import contest, summary, tuning
from proxbi.cleaning.method.free import FEWEST, Free
from proxbi.cleaning.method.scoring import judge_all
from proxbi.cleaning.method.kernel import typical_distance
from proxbi.cleaning.method.table import checked
from proxbi.cleaning.method.weightings import WAYS
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
    if weights not in ("auto", "free"):
        raise ValueError(f'weights must be "auto" or "free", got {weights!r}.')
    if weights == "free" and sample_weight is not None:
        raise ValueError(
            'sample_weight must not be given with weights="free", which sets the weight of each row itself.'
        )
    table = checked(features, labels, classes, trusted, groups, sample_weight)
    if weights == "free" and len(table.gold) < FEWEST:
        raise ValueError(f'trusted must mark at least {FEWEST} rows for weights="free", got {len(table.gold)}.')
    say = progress or (lambda stage, share: None)
    draw = np.random.default_rng(seed)

    say("solving for the settings", 0.0)
    roles = tuning.assign(table, draw)
    unit = typical_distance(table.features[roles.fit])
    tuned = tuning.tune(table, roles, unit)
    say("comparing ways to weigh rows", 0.5)
    free = Free()
    ways, wanted = (WAYS, None) if weights == "auto" else (WAYS | {"free": free}, "free")
    verdict = contest.hold(table, roles, unit, tuned, ways, wanted)
    say("judging all rows", 0.7)
    settings = tuning.average(tuned)
    bandwidth = unit * math.exp(settings["bandwidth"])
    judged = judge_all(table, settings, bandwidth, ways[verdict.chosen], draw)
    if not judged.informed:
        verdict = verdict._replace(chosen="noisy", helped=False)
    say("done", 1.0)

    noisy, quality = ~table.trusted, judged.quality
    issue = noisy & (quality < 0.5)
    rate = summary.wrong_share(quality[noisy])
    by_group = summary.wrong_shares("group", table.groups, table.group_count, quality, noisy)
    return Cleaned(
        weight=judged.weight,
        quality=quality,
        issue=issue,
        suggested=np.where(issue, judged.other, table.labels),
        trusted=table.trusted,
        noise_rate=rate,
        noise_by_class=summary.wrong_shares("class", table.labels, classes, quality, noisy),
        noise_by_group=[] if groups is None else by_group,
        scores=verdict.scores,
        chosen=verdict.chosen,
        helped=verdict.helped,
        history=free.history if wanted == "free" else tuned[0].history,
        removal=verdict.removal,
        warnings=list(summary.sentences(table, tuned, verdict, judged.informed, issue)),
        settings={
            "noise rate": rate.estimate,
            "bandwidth": bandwidth,
            "ridge": math.exp(settings["ridge"]),
            "temperature": judged.temperature,
            "rows fitted": judged.fitted,
            "solver": tuned[0].status.name,
            "seed": seed,
        },
    )
