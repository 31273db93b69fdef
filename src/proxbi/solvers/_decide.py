r"""Whether a trial point is taken, and what that teaches: pure functions of a few numbers.

Let D = Phi(x+) + h(x+) - Phi(x) - h(x) be the true change. Two measurements of it are at hand:

    by values   V = change of Phi^ + change of h,                 |V - D| <= noise = rounding + errors of both Phi^;
    by slopes   S = <d + d+, x+ - x> / 2 + change of h,           the trapezoidal rule, free of cancellation.

A trial is taken only if

    (values)  V <= -c * predicted   and   |V| > noise:        then D <= V + noise < 0, or
    (slopes)  |V| <= noise,  the errors of Phi^ are below half of the predicted gain or below rounding,  and
              S + |x+ - x| (E + E+) / 2 <= 0:                 then D <= 2 noise, which is rounding or half the gain.

So a step that is taken lowers the objective, or changes it by no more than rounding hides; with the errors bounded as
estimated, no accepted point is worse than x0 by more than rounding. A trial whose hypergradient is not known to within
half of its size is not taken at all: neither V nor S means anything there. Where the errors of Phi^ are what hides the
change, or V and S contradict one another, the point the step starts from is evaluated again, more accurately
(`doubtful`), before the step is blamed. That holds for a fall as well, if it may be the work of an error estimate that
is far too small: it is taken once x was evaluated twice, with all estimates raised (`sure`).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxbi._tree import Scalar

SUFFICIENT = 1e-4  # of the predicted decrease: Armijo's constant, the usual value
ROUNDING = 10  # units of rounding by which a sum of many terms may be off
SAFETY = 10  # by which the estimated errors of values may be too small
UNDERRATED = 20  # errors between values and slopes: further apart they are too far for any estimate to be at fault
AT_ODDS = 0.5  # values and slopes that differ by more than this part of the change contradict one another
GROWTH = 10  # of the radius, in units of a step that was taken
SHRINK = 0.5  # of it, in units of one that was refused: its pair has already taught the model most of what was wrong
FARTHER = 1.2  # times, with each step taken, may h jump again: a refused jump is tried again after four of them
RELAXED = 0.3  # of B where curvature was not positive: forgets a curvature that is gone in a few steps
DOUBT = 10  # by which accuracy is raised where an error estimate proved too small
MOST_DOUBT = 100  # of it, in all
FORGIVEN = 0.7  # of that, after each step taken: forgotten in about six steps
PROGRESS = 0.9  # a fall of the stationarity by less than a tenth may be noise
BOTTOMLESS = 0.5  # power of the largest number: an objective below minus that much has no bottom
UNBOUNDED = 1e8  # a way so many times the first step, without the slope falling, has no end


class Move(NamedTuple):
    """What both ends of a step say about it."""

    predicted: Scalar
    """-(<d, x+ - x> + h(x+) - h(x)): the decrease of the linear model."""
    by_value: Scalar
    by_slopes: Scalar
    size: Scalar
    """Of the terms that the values are differences of."""
    value_error: Scalar
    """Of both values, as estimated."""
    slope_error: Scalar
    usable: Bool[Array, ""]
    """Whether the evaluation at x+ is finite, solved, and right to within half of its size."""
    sure: Bool[Array, ""]
    """Whether x was evaluated again, more accurately."""


class Decision(NamedTuple):
    """What is made of a move."""

    taken: Bool[Array, ""]
    seen: Bool[Array, ""]
    """Whether the change stands out of all noise."""
    doubtful: Bool[Array, ""]
    """Refused, but the values may be at fault and not the step."""
    mild: Bool[Array, ""]
    """Whether the objective rose, if it did, by no more than it was to fall: what was learned there holds here."""


def decide(move: Move) -> Decision:
    """The rules at the top of this file."""
    numbers = move[:-2]
    usable = move.usable & jnp.all(jnp.isfinite(jnp.stack(numbers))) & (move.value_error >= 0) & (move.slope_error >= 0)
    rounding = ROUNDING * float(jnp.finfo(move.by_value.dtype).eps) * move.size
    noise = ROUNDING * rounding + SAFETY * move.value_error
    gain = jnp.maximum(move.predicted, 0)
    visible = jnp.abs(move.by_value) > noise
    falls = visible & (move.by_value <= -SUFFICIENT * gain)
    sharp = SAFETY * move.value_error <= jnp.maximum(0.5 * gain, rounding)
    slides = ~visible & sharp & (move.by_slopes + move.slope_error <= 0)
    seen = visible | (move.by_slopes < -move.slope_error)
    gulf = jnp.abs(move.by_value - move.by_slopes)
    at_odds = gulf > jnp.maximum(AT_ODDS * jnp.abs(move.by_value), rounding)
    misled = at_odds & (2 * jnp.abs(move.by_slopes) < jnp.abs(move.by_value))
    believed = move.sure | ~misled | (gulf > UNDERRATED * move.value_error)
    taken = usable & ((falls & believed) | slides)
    return Decision(
        taken=taken,
        seen=taken & seen,
        doubtful=usable & ~taken & (misled | ~(visible | sharp)),
        mild=usable & (move.by_value <= gain),
    )


class Steering(NamedTuple):
    """What steers the next step."""

    radius: Scalar
    """Steps much longer than this are not trusted: |d + s| / radius is added to B."""
    reach: Scalar
    """A nonconvex h may jump out of the radius: no further than this, which falls where that was refused."""
    relax: Scalar
    """The factor on B where the curvature met was not positive."""
    trust: Scalar
    """>= 1: by how much error estimates have proved too small."""
    refine: Bool[Array, ""]
    """Whether the next step evaluates the same x again, more accurately."""
    refined: Bool[Array, ""]
    """Whether x was refined since it was reached."""

    def after(self, decision: Decision, length: Scalar, learned: Bool[Array, ""]) -> "Steering":
        """After a move of this length, and whether a pair was learned from it."""
        taken, refine = decision.taken, decision.doubtful & ~self.refined
        grown, doubt = jnp.maximum(self.radius, GROWTH * length), jnp.minimum(DOUBT * self.trust, MOST_DOUBT)
        shrunk = SHRINK * jnp.minimum(self.radius, length)
        jumps = ~(taken | refine) & (length > self.radius)
        return Steering(
            radius=jnp.where(taken, grown, jnp.where(refine, self.radius, shrunk)),
            reach=jnp.where(taken, FARTHER * self.reach, jnp.where(jumps, SHRINK * length, self.reach)),
            relax=jnp.where(learned, 1, jnp.where(taken, RELAXED, 1) * self.relax),
            trust=jnp.where(taken, jnp.maximum(1, FORGIVEN * self.trust), jnp.where(refine, doubt, self.trust)),
            refine=refine,
            refined=~taken & self.refined,
        )


class Watch(NamedTuple):
    """What tells that a run cannot go on."""

    radius: Scalar
    """The first one."""
    start: Scalar
    """Phi + h at x0."""
    best_gap: Scalar
    steepest: Scalar
    """The largest gap of a point that was taken."""
    longest: Scalar
    """The longest step taken."""
    idle: Int[Array, ""]
    """Trials in a row without progress that stands out of rounding."""

    def after(self, decision: Decision, gap: Scalar, length: Scalar) -> "Watch":
        """After a move to a point of this gap."""
        better = gap <= PROGRESS * self.best_gap
        known = jnp.isfinite(gap)
        return self._replace(
            best_gap=jnp.where(known, jnp.minimum(self.best_gap, gap), self.best_gap),
            steepest=jnp.where(decision.taken, jnp.maximum(self.steepest, gap), self.steepest),
            longest=jnp.where(decision.taken, jnp.maximum(self.longest, length), self.longest),
            idle=jnp.where(decision.seen | (known & better), 0, self.idle + 1),
        )
