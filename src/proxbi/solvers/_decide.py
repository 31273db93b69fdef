r"""Whether a trial point is accepted, and what follows from it: pure functions of a few numbers.

Let D = Phi(x+) + h(x+) - Phi(x) - h(x) be the true change. There are two measurements of it:

    by values   V = change of Phi^ + change of h,                 |V - D| <= noise = rounding + errors of both Phi^;
    by slopes   S = <d + d+, x+ - x> / 2 + change of h,           the trapezoidal rule, free of cancellation.

A trial is accepted only if

    (values)  V <= -c * predicted   and   |V| > noise:        then D <= V + noise < 0, or
    (slopes)  |V| <= noise,  the errors of Phi^ are below half of the predicted gain or below rounding,  and
              S + |x+ - x| (E + E+) / 2 <= 0:                 then D <= 2 noise, which is rounding or half the gain.

So an accepted step lowers the objective, or changes it by no more than rounding; if the errors are no larger than
estimated, no accepted point is worse than x0 by more than rounding. A trial whose hypergradient is not known to within
half of its size is always rejected: neither V nor S means anything there. If the errors of Phi^ hide the change, or
those of d the slope, or V and S contradict one another, the point the step starts from is first evaluated again, more
accurately (`doubtful`). That holds for a decrease as well, if an error estimate that is far too small may explain it:
it is accepted once x was evaluated twice, with all estimates raised (`sure`).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxbi._tree import Scalar

SUFFICIENT = 1e-4  # of the predicted decrease: Armijo's constant, the usual value
ROUNDING = 10  # units of rounding by which a sum of many terms may be off
SAFETY = 10  # the factor by which the estimated errors of values may be too small
UNDERRATED = 20  # errors between values and slopes: no error estimate explains a larger difference
AT_ODDS = 0.5  # values and slopes that differ by more than this part of the change contradict one another
GROWTH = 10  # of the radius, in units of an accepted step
SHRINK = 0.5  # of it, in units of a rejected step: its pair has already corrected most of the model's error
FARTHER = 1.2  # growth of `reach` with each accepted step: a rejected jump is tried again after four of them
RELAXED = 0.3  # of B where curvature was not positive: in a few steps, forgets a curvature that is gone
DOUBT = 10  # by which accuracy is raised where an error estimate proved too small
MOST_DOUBT = 100  # of it, in all
FORGIVEN = 0.7  # of that, after each accepted step: forgotten in about six steps
PROGRESS = 0.9  # a decrease of the stationarity by less than a tenth may be noise
BOTTOMLESS = 0.5  # power of the largest number: an objective below minus that much has no bottom
UNBOUNDED = 1e8  # a path this many times the first step, without the slope falling, has no end


class Move(NamedTuple):
    """A step, as measured at both of its ends."""

    predicted: Scalar
    """-(<d, x+ - x> + h(x+) - h(x)): the decrease of the linear model."""
    by_value: Scalar
    by_slopes: Scalar
    size: Scalar
    """Of the terms whose differences the values are."""
    value_error: Scalar
    """Of both values, as estimated."""
    slope_error: Scalar
    usable: Bool[Array, ""]
    """Whether the evaluation at x+ is finite, solved, and correct to within half of its size."""
    sure: Bool[Array, ""]
    """Whether x was evaluated again, more accurately."""


class Decision(NamedTuple):
    """The verdict on a move."""

    taken: Bool[Array, ""]
    seen: Bool[Array, ""]
    """Whether the change stands out of all noise."""
    doubtful: Bool[Array, ""]
    """Rejected, but the values may be at fault and not the step."""
    mild: Bool[Array, ""]
    """Whether any rise of the objective is at most the predicted decrease: what was learned there holds here."""


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
    blurred = ~visible & sharp & (jnp.abs(move.by_slopes) < move.slope_error)
    seen = visible | (move.by_slopes < -move.slope_error)
    gulf = jnp.abs(move.by_value - move.by_slopes)
    at_odds = gulf > jnp.maximum(AT_ODDS * jnp.abs(move.by_value), rounding)
    misled = at_odds & (2 * jnp.abs(move.by_slopes) < jnp.abs(move.by_value))
    believed = move.sure | ~misled | (gulf > UNDERRATED * move.value_error)
    taken = usable & ((falls & believed) | slides)
    return Decision(
        taken=taken,
        seen=taken & seen,
        doubtful=usable & ~taken & (misled | blurred | ~(visible | sharp)),
        mild=usable & (move.by_value <= gain),
    )


class Steering(NamedTuple):
    """The numbers that control the next step."""

    radius: Scalar
    """Steps much longer than this are not trusted: |d + s| / radius is added to B."""
    reach: Scalar
    """A nonconvex h may jump out of the radius, but no further than this, which shrinks when a jump is rejected."""
    relax: Scalar
    """The factor on B where the curvature met was not positive."""
    trust: Scalar
    """>= 1: the factor by which error estimates have proved too small."""
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
    """The numbers that show that a run cannot continue."""

    radius: Scalar
    """The first one."""
    start: Scalar
    """Phi + h at x0."""
    best_gap: Scalar
    steepest: Scalar
    """The largest gap of an accepted point."""
    longest: Scalar
    """The longest accepted step."""
    idle: Int[Array, ""]
    """Consecutive trials without progress beyond rounding."""

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
