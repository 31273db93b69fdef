"""Which weighting of rows is best? Each is used to fit the noisy rows of the sample together with one half of the
trusted rows, and is judged on the other half, which is used for nothing else. Then the halves change places.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.special import softmax

from proxbi.cleaning.method.bilevel import Solved, noise_of
from proxbi.cleaning.method.kernel import kernel_map, landmark_count
from proxbi.cleaning.method.reweighting import Rows, fit, read
from proxbi.cleaning.method.samples import Roles
from proxbi.cleaning.method.table import Table, bucket, padded
from proxbi.cleaning.method.weightings import BILEVEL, NOISY, Task, Weighting
from proxbi.cleaning.result import Removal, Score

LANDMARKS = 512
REMOVALS = 9
"""Points of the removal curve."""


class Verdict(NamedTuple):
    """The scores of all weightings, and the chosen one."""

    scores: list[Score]
    chosen: str
    helped: bool
    removal: list[Removal]


class Fold(NamedTuple):
    """One half of the trusted rows helps, the other judges."""

    task: Task
    noisy: Bool[np.ndarray, " rows"]
    """The rows to weight."""
    judges: Float[np.ndarray, "judges size"]
    judge_labels: Int[np.ndarray, " judges"]


class Losses(NamedTuple):
    """For each judge: -log p of its label, and whether its label is the most likely class."""

    loss: Float[np.ndarray, " judges"]
    hit: Bool[np.ndarray, " judges"]

    def score(self, name: str) -> Score:
        """Means and their standard errors."""
        root = np.sqrt(max(1, len(self.loss) - 1))
        means = (float(mean) for each in (self.hit, self.loss) for mean in (each.mean(), each.std() / root))
        return Score(name, *means)


def hold(
    table: Table,
    roles: Roles,
    unit: float,
    tuned: list[Solved],
    weightings: Sequence[Weighting],
    wanted: Weighting | None = None,
) -> Verdict:
    """Score all weightings on both folds. The one `wanted` is chosen, or the first that no later one clearly beats."""
    pairs = zip(roles.helpers, roles.halves[::-1], strict=True)
    folds = [_fold(table, roles, unit, one, *pair) for one, pair in zip(tuned, pairs, strict=False)]
    possible = [one for one in weightings if len(roles.halves[0]) or not one.needs_trusted]
    weights = {one.name: [one.weigh(fold.task) for fold in folds] for one in possible}
    losses = {name: _joined(map(evaluate, folds, each)) for name, each in weights.items()}
    chosen = wanted.name if wanted else _chosen(losses)
    scores = [found.score(name) for name, found in losses.items()]
    helped = _clearly_better(losses[chosen], losses[NOISY.name])
    return Verdict(scores, chosen, helped, _removal(folds, weights[BILEVEL.name], int(np.sum(~table.trusted))))


def _chosen(losses: dict[str, Losses]) -> str:
    """The simplest weighting, unless another is better by two standard errors of the paired difference."""
    names = list(losses)
    chosen = names[0]
    for name in names[1:]:
        chosen = name if _clearly_better(losses[name], losses[chosen]) else chosen
    return chosen


def _clearly_better(one: Losses, other: Losses) -> bool:
    gain = other.loss - one.loss
    return bool(gain.mean() > 2 * gain.std() / np.sqrt(max(1, len(gain) - 1)))


def evaluate(fold: Fold, weights: Float[Array, " rows"]) -> Losses:
    """Fit with these weights, choose the temperature on the helpers, each left out in turn, and score the judges."""
    rows, x = fold.task.rows, fold.task.settings
    noise = noise_of(x)
    fitted = fit(rows, weights, x["ridge"], noise)
    # Without trusted rows all labels count as given, since those of the judges are noisy too.
    helpers = np.asarray(rows.trusted) if np.any(rows.trusted) else np.ones(len(rows.trusted), np.float32)
    repeats = np.asarray(rows.repeats) * helpers
    told = rows._replace(trusted=jnp.asarray(helpers), repeats=jnp.asarray(repeats))
    temperature, _ = read(fitted.scores, told, noise)
    scores = np.asarray(fold.judges, np.float64) @ np.asarray(fitted.coefficients, np.float64)
    # A temperature that suited all of m helpers may still be wrong once in m + 2 (Laplace's rule of succession).
    doubt = 1 / (repeats.sum() + 2)
    belief = (1 - doubt) * softmax(scores / np.exp(float(temperature)), axis=1) + doubt / scores.shape[1]
    own = belief[np.arange(len(belief)), fold.judge_labels]
    return Losses(-np.log(own), np.argmax(belief, axis=1) == fold.judge_labels)


def _fold(
    table: Table,
    roles: Roles,
    unit: float,
    tuned: Solved,
    helpers: Int[np.ndarray, " h"],
    judges: Int[np.ndarray, " j"],
) -> Fold:
    positions = np.concatenate([roles.fit, roles.watch, helpers])
    size = bucket(len(positions))
    landmarks = table.features[positions[: landmark_count(len(positions), LANDMARKS)]]
    phi = kernel_map(landmarks, unit * math.exp(tuned.settings["bandwidth"]))
    raw = padded(table.features[positions], size)
    rows = Rows(
        phi(raw),
        table.given(positions, size),
        padded(table.trusted[positions].astype(np.float32), size),
        padded(table.repeats[positions], size),
    )
    noisy = np.arange(size) < len(positions) - len(helpers)
    judging = np.asarray(phi(padded(table.features[judges], bucket(len(judges)))))[: len(judges)]
    return Fold(Task(rows, raw, tuned.settings), noisy, judging, table.labels[judges])


def _joined(parts: Iterable[Losses]) -> Losses:
    loss, hit = zip(*parts, strict=True)
    return Losses(np.concatenate(loss), np.concatenate(hit))


def _removal(folds: list[Fold], qualities: list[Array], rows: int) -> list[Removal]:
    """The loss when rows are left out, those with the lowest quality first, as a function of how many."""
    known = [np.asarray(quality) for quality in qualities]
    ours = [quality[fold.noisy] for fold, quality in zip(folds, known, strict=True)]
    wrong = float(np.mean([1 - quality.mean() for quality in ours]))
    curve = []
    for share in np.linspace(0, min(0.9, max(0.1, 2 * wrong)), REMOVALS):
        cuts = [np.quantile(quality, share) for quality in ours]
        kept = [jnp.asarray((quality >= cut).astype(np.float32)) for quality, cut in zip(known, cuts, strict=True)]
        losses = _joined(map(evaluate, folds, kept))
        curve.append(Removal(round(float(share) * rows), float(losses.loss.mean()), float(losses.hit.mean())))
    return curve
