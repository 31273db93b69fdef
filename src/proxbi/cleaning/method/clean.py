"""The label cleaner: from rows with partly wrong labels to a weight and a quality for each.

1. `samples.py` solves the bilevel problem of `bilevel.py` on samples, once for each half of the trusted rows.
2. `selection.py` compares the resulting weights with simpler ones on held-out trusted rows: do they matter?
3. `scoring.py` scores all rows by learners that have not seen their labels, and `decision.py` decides.

For a large table these steps use a sample, drawn by `drawing.py`; the other rows are then judged block by block.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # untyped

from proxbi.cleaning.method import samples, selection, summary
from proxbi.cleaning.method.all_rows import AddUp, of_table, refit
from proxbi.cleaning.method.bilevel import Solved
from proxbi.cleaning.method.drawing import FIT, checked_number, learned_from
from proxbi.cleaning.method.free import FEWEST, Free
from proxbi.cleaning.method.kernel import typical_distance
from proxbi.cleaning.method.memory import require_memory
from proxbi.cleaning.method.randomness import stream
from proxbi.cleaning.method.scoring import Found, Judged, judge_all, reviewed
from proxbi.cleaning.method.summary import Figures
from proxbi.cleaning.method.table import Table, checked
from proxbi.cleaning.method.voting import judge_votes
from proxbi.cleaning.method.weightings import MEANING_OF_FREE, NOISY, PLAIN_FREE, WEIGHTINGS, Weighting
from proxbi.cleaning.result import Cleaned, Consensus, Findings, OuterStep

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
    learn_from: int = FIT,
    fit_all: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Cleaned:
    """Find wrong labels.

    **Arguments:**

    - `features`: finite, and scaled so that distances mean something.
    - `labels`: class indices 0..classes-1, some of them wrong.
    - `classes`: the number of classes.
    - `trusted`: the rows whose labels are right. Without any, noisy rows judge noisy rows, and a warning says so.
    - `groups`: the annotator or source 0, 1, ... of each row; each has its own noise rate.
    - `sample_weight`: the weight of each row.
    - `pred_probs`: out-of-fold class probabilities of your own model, used as one more opinion on each row; NaN for
      rows without any.
    - `votes`: the votes of several annotators: classes, or -1 for no vote. `labels` are then the consensus of the
      votes alone (`votes.by_votes_alone`), the true classes of trusted rows, and ignored for rows without any vote.
    - `before`: the earlier labels of trusted rows that a person decided after seeing them; -1 for all other rows.
    - `weights`: "auto", a few parameters for all rows together; or "free", one parameter per row, as in the paper.
    - `learn_from`: the maximal number of rows that are fitted, at most half of them trusted. All others are judged by
      this fit. More rows find more wrong labels, and take time and memory in proportion.
    - `fit_all`: if there are more rows than that, fit the regression that judges to all of them, in the memory of a
      block of rows (`all_rows.py`).
    - `seed`: the same seed gives the same result.
    - `progress`: called with a stage and the share of the work done.

    **Returns:** a `Cleaned`: the labels that are probably wrong, quality and weight of each row, and rates of noise.

    >>> draw = np.random.default_rng(0)
    >>> labels = np.arange(120) % 2
    >>> features = draw.normal(size=(120, 2)) + 6 * labels[:, None]
    >>> labels[[7, 50]] = 1 - labels[[7, 50]]
    >>> np.flatnonzero(clean(features, labels, 2, trusted=np.arange(120) >= 80).issue)
    array([ 7, 50])
    """
    table = checked(features, labels, classes, trusted, groups, sample_weight, pred_probs, votes, before)
    table = table._replace(learn_from=checked_number(learn_from))
    check_weights(weights, sample_weight is not None, len(table.judges))
    check_fit_all(fit_all, weights, votes is not None)
    # All votes are used together: a table with votes is never sampled.
    may = table.repeats > 0
    require_memory(min(learn_from, len(may)), classes, table.features.shape[1])
    places = np.arange(len(table.labels)) if votes is not None else learned_from(seed, learn_from, table.trusted, may)
    with one_thread():
        whole = len(places) == len(may)
        add = of_table(table, places) if fit_all and not whole else None
        learned = learn(table if whole else table.take(places), weights, seed, progress, add)
        found = _cleaned(table, places, learned, groups is not None)
    if progress is not None:
        progress("done", 1.0)
    return found


def one_thread() -> Any:
    """One BLAS thread: on a busy machine the threads of BLAS and of JAX wait for one another."""
    return threadpool_limits(limits=1, user_api="blas")


def check_weights(weights: str, weighted: bool, trusted: int) -> None:
    """Raise an error for unknown weights, or if "free" has too few trusted rows."""
    if weights not in ("auto", "free"):
        raise ValueError(f'weights must be "auto" or "free", got {weights!r}.')
    if weights == "free" and weighted:
        raise ValueError(
            'sample_weight must not be given with weights="free", which sets the weight of each row itself.'
        )
    if weights == "free" and trusted < FEWEST:
        raise ValueError(f'trusted must mark at least {FEWEST} rows for weights="free", got {trusted}.')


def check_fit_all(fit_all: object, weights: str, voted: bool) -> None:
    """Raise an error if all rows cannot be fitted."""
    if not isinstance(fit_all, bool):
        raise TypeError(f"fit_all must be True or False, got {fit_all!r}.")
    if fit_all and weights == "free":
        raise ValueError('fit_all must be False with weights="free", which has weights for the rows learned from only.')
    if fit_all and voted:
        raise ValueError("fit_all must be False with several votes per row, which are read together.")


class Learned(NamedTuple):
    """What was learned from a table, or from a sample of its rows."""

    sample: Table
    judged: Judged
    """The rows of the sample, judged."""
    tuned: list[Solved]
    verdict: selection.Verdict
    consensus: Consensus | None
    history: list[OuterStep]
    settings: dict[str, float | str]
    wanted: bool
    """Whether weights were asked for."""

    def findings(self, figures: Figures, some: Table, *, grouped: bool) -> Findings:
        """The findings for the table, from figures of all of its rows; `some` are the rows `judged.some`."""
        verdict, informed = self.verdict, self.judged.informed
        rates = summary.rates(figures, self.judged, some)
        return Findings(
            noise_rate=rates.overall,
            noise_by_class=rates.by_class,
            noise_by_group=rates.by_group if grouped else [],
            scores=verdict.scores,
            chosen=verdict.chosen,
            helped=verdict.helped,
            history=self.history,
            removal=verdict.removal,
            warnings=list(summary.sentences(figures, self.tuned, verdict, informed=informed, wanted=self.wanted)),
            settings={"noise rate": rates.overall.estimate, **self.settings},
            consensus=self.consensus,
        )


def learn(
    table: Table,
    weights: Literal["auto", "free"],
    seed: int,
    progress: Progress | None = None,
    add: AddUp | None = None,
) -> Learned:
    """Solve for the settings, compare weightings, and judge the rows of this table; with `add` by a fit to all rows of
    the table of which it is a sample.
    """
    say = progress or (lambda stage, share: None)
    draw, free = stream(seed), Free() if weights == "free" else None
    say("solving for the settings", 0.0)
    roles = samples.assign(table, draw)
    unit = typical_distance(table.features[roles.fit])
    tuned = samples.tune(table, roles, unit)
    say("comparing weightings", 0.5)
    wanted = Weighting("free", PLAIN_FREE, MEANING_OF_FREE, True, free) if free else None
    # Decided rows help to judge, but they were picked: scores measured on them do not hold for all rows.
    fair = samples.assign(table, draw, table.judges) if table.decided.any() else roles
    compared = [*WEIGHTINGS, *([wanted] if wanted else [])]
    verdict = selection.hold(table, fair, unit, tuned[: 2 if len(fair.halves[0]) else 1], compared, wanted)
    say("judging all rows", 0.7)
    settings = samples.average(tuned)
    bandwidth = unit * math.exp(settings["bandwidth"])
    if table.votes is None:
        again = None if add is None else partial(refit, add)
        judged, consensus = judge_all(table, settings, bandwidth, free, draw, again), None
    else:
        judged, consensus = judge_votes(table, settings, bandwidth, free, draw)
    if not judged.informed:
        verdict = verdict._replace(chosen=NOISY.name, helped=False)
    solved: dict[str, float | str] = {
        "bandwidth": bandwidth,
        "ridge": math.exp(settings["ridge"]),
        "temperature": judged.temperature,
        "rows fitted": judged.fitted,
        "solver": tuned[0].status.name,
        "seed": seed,
    }
    history = free.history if free else tuned[0].history
    return Learned(table, judged, tuned, verdict, consensus, history, solved, wanted is not None)


def flagged(found: Found, trusted: Bool[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """The labels that are more likely wrong than right."""
    return ~trusted & (found.quality < 0.5)


def of_rows(
    found: Found, issue: Bool[np.ndarray, " rows"], table: Table, review: Int[np.ndarray, " doubtful"]
) -> dict[str, Any]:
    """The columns of `Cleaned`, one value per row."""
    return {
        "weight": found.weight,
        "quality": found.quality,
        "issue": issue,
        "suggested": np.where(issue, found.other, table.labels),
        "trusted": table.trusted,
        "review": reviewed(table.trusted, review),
        "decided": table.decided,
    }


def _cleaned(table: Table, places: Int[np.ndarray, " learned"], learned: Learned, grouped: bool) -> Cleaned:
    """Judge all rows of the table by what was learned from the rows at `places`."""
    judged, consensus = learned.judged, learned.consensus
    found = judged.judge(places)(table)
    if consensus is None:
        issue = flagged(found, table.trusted)
    else:
        issue = ~table.trusted & table.voted & (consensus.label != table.labels)
        table = table._replace(labels=np.where(table.voted, table.labels, consensus.label))
    figures = Figures.of(table, found.quality, issue)
    return Cleaned(
        **of_rows(found, issue, table, places[judged.review]),
        **learned.findings(figures, table.take(places[judged.some]), grouped=grouped).of_the_whole(),
    )
