"""The suite rejects wrong proxes: those that published libraries have shipped, and a few classics.

Each mutant is a real regularizer with its prox replaced, in the row of the original. The checks and the search for
examples are those of `test_regularizers.py`; here they must fail.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import prox_reference as ref
import proxbi.regularizers as pr
from cases import REGULARIZERS, STRENGTH, Row
from test_regularizers import Check, check_convex, check_global_minimiser, check_monotone, search

ROWS = {row.name: row for row in REGULARIZERS}


def mutant(name: str, prox: Callable[..., Any]) -> Row:
    """The row `name`, whose regularizer gets the prox `prox(x, step, *parameters)`."""
    original = ROWS[name].make

    class Mutant(original):
        def prox(self, x: Any, step: Any) -> Any:
            return prox(x, step, *(getattr(self, field) for field in ROWS[name].parameters))

    return replace(ROWS[name], make=Mutant)


def by_hand(x: Any, magnitude: Any) -> Any:
    """sign(x) magnitude, with sign(0) = 0."""
    return jnp.sign(x) * magnitude


def soft(x: Any, s: Any) -> Any:
    """The prox of s |.|."""
    return by_hand(x, jnp.maximum(jnp.abs(x) - s, 0))


def mcp_one_regime(x: Any, t: Any, strength: Any, theta: Any) -> Any:
    """The formula for step < theta, whatever the step."""
    ax, s = jnp.abs(x), t * strength
    inner = by_hand(x, (ax - s) / (1 - t / theta))
    return jnp.where(ax <= s, 0, jnp.where(ax > theta * strength, x, inner))


def mcp_wrong_threshold(x: Any, t: Any, strength: Any, theta: Any) -> Any:
    """The second regime with the threshold of step = theta, without the step in it."""
    right = pr.MCP(strength, theta).prox(x, t)
    return jnp.where(t < theta, right, jnp.where(jnp.abs(x) <= strength * theta, 0, x))


def scad_one_regime(x: Any, t: Any, strength: Any, a: Any) -> Any:
    """The three pieces of step < a - 1, whatever the step; divides by 0 at a - 1."""
    ax = jnp.abs(x)
    middle = by_hand(x, ((a - 1) * ax - a * t * strength) / (a - 1 - t))
    return jnp.where(ax <= strength * (1 + t), soft(x, t * strength), jnp.where(ax <= a * strength, middle, x))


def scad_two_regimes(x: Any, t: Any, strength: Any, a: Any) -> Any:
    """Right up to step = a + 1, and the second regime beyond it."""
    second = jnp.where(jnp.abs(x) <= strength * (a + 1 + t) / 2, soft(x, t * strength), x)
    return jnp.where(t < a - 1, pr.SCAD(strength, a).prox(x, t), second)


def scad_singular(x: Any, t: Any, strength: Any, a: Any) -> Any:
    """Right, but for a division by 0 at step = a - 1."""
    return pr.SCAD(strength, a).prox(x, t) * ((a - 1 - t) / (a - 1 - t))


def log_sum(x: Any, s: Any, epsilon: Any, factor: float, local: bool) -> Any:
    """The larger root, from a discriminant with `factor` s; chosen wherever it exists if `local`."""
    ax = jnp.abs(x)
    discriminant = (ax + epsilon) ** 2 - factor * s
    r = jnp.maximum((ax - epsilon + jnp.sqrt(jnp.maximum(discriminant, 0))) / 2, 0)
    gain = r * (ax - r / 2) - s * jnp.log1p(r / epsilon)
    return by_hand(x, jnp.where((discriminant >= 0) & (local | (gain > 0)), r, 0))


def lp_newton_with_a_floor(x: Any, t: Any, strength: Any, p: Any) -> Any:
    """Newton from the left of the root, kept above a floor that it reaches."""
    ax, s = jnp.abs(x), t * strength

    def step(_: int, u: Any) -> Any:
        slope = s * p * u ** (p - 1)
        return jnp.maximum(u - (u - ax + slope) / (1 - (1 - p) * slope / u), 5e-10)

    root = jax.lax.fori_loop(0, 50, step, jnp.full_like(x, 1e-3))
    return by_hand(x, jnp.where(root**2 / 2 - ax * root + s * root**p < 0, root, 0))


def authors_masks(x: Any, t: Any, strength: Any, cap: Any) -> Any:
    """The published script for the negative capped l1: its masks overlap if step * strength > cap."""
    s = t * strength
    result = jnp.where((x >= 0) & (x < cap - s), x + s, x)
    result = jnp.where((x < 0) & (x > s - cap), x - s, result)
    result = jnp.where((x < 0) & (x > -cap) & (x <= s - cap), -cap, result)
    return jnp.where((x >= cap - s) & (x < cap), cap, result)


class Stvs(pr.Penalty):
    """Soft thresholding with vanishing shrinkage; its published prox is right for step 1 only."""

    convex: ClassVar[bool] = False

    def _value(self, x: Any) -> Any:
        angle = jnp.arcsinh(jnp.abs(x) / (2 * self.strength))
        return self.strength**2 * (angle + 0.5 - jnp.exp(-2 * angle) / 2)

    def _prox(self, x: Any, step: Any) -> Any:
        return jnp.where(x == 0, 0, x * jnp.maximum(1 - (step * self.strength / jnp.where(x == 0, 1, x)) ** 2, 0))


class FusedLasso(pr.Regularizer):
    """l1 norm and total variation, with a "prox" that adds a difference: even without strength it moves every x."""

    strength: Any
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False

    def value(self, x: Any) -> Any:
        return self.strength * (jnp.sum(jnp.abs(x)) + jnp.sum(jnp.abs(jnp.diff(x))))

    def prox(self, x: Any, step: Any) -> Any:
        return soft(x, step * self.strength) + soft(x[0] - x[1], step * self.strength)


def vacuous(x: Any, t: Any, strength: Any) -> Any:
    """Not a prox of anything; it satisfies Moreau's identity if the dual prox is defined through that identity."""
    return jnp.sin(37 * x) + t


STVS = Row("stvs", Stvs, {"strength": STRENGTH}, term=ref.stvs, convex=False)
FUSED = Row(
    "fused lasso",
    FusedLasso,
    {"strength": STRENGTH},
    value=lambda u, strength: strength * (np.abs(u).sum(axis=-1) + np.abs(np.diff(u, axis=-1)).sum(axis=-1)),
    shape=(4,),
)

MUTANTS = {
    "l0, threshold s instead of sqrt(2s)": mutant("l0", lambda x, t, lam: jnp.where(jnp.abs(x) > t * lam, x, 0)),
    "l0, the step forgotten": mutant("l0", lambda x, t, lam: jnp.where(jnp.abs(x) > jnp.sqrt(2 * lam), x, 0)),
    "capped l1, soft regime only": mutant(
        "capped l1", lambda x, t, lam, cap: jnp.where(jnp.abs(x) <= cap + t * lam / 2, soft(x, t * lam), x)
    ),
    "mcp, one regime": mutant("mcp", mcp_one_regime),
    "mcp, threshold without the step": mutant("mcp", mcp_wrong_threshold),
    "scad, one regime": mutant("scad", scad_one_regime),
    "scad, two regimes": mutant("scad", scad_two_regimes),
    "scad, NaN at a - 1": mutant("scad", scad_singular),
    "log-sum, 2s in the discriminant": mutant("log-sum", lambda x, t, lam, e: log_sum(x, t * lam, e, 2.0, False)),
    "log-sum, local threshold": mutant("log-sum", lambda x, t, lam, e: log_sum(x, t * lam, e, 4.0, True)),
    "lp, Newton reaches its floor": mutant("lp", lp_newton_with_a_floor),
    "negative capped l1, sign(0) = 0": mutant(
        "negative capped l1",
        lambda x, t, lam, cap: by_hand(x, jnp.maximum(jnp.abs(x), jnp.minimum(jnp.abs(x) + t * lam, cap))),
    ),
    "negative capped l1, half the shift": mutant(
        "negative capped l1", lambda x, t, lam, cap: pr.NegativeCappedL1(lam, cap).prox(x, t / 2)
    ),
    "negative capped l1, the authors' masks": mutant("negative capped l1", authors_masks),
    "negative capped l1, wrong sign": mutant(
        "negative capped l1", lambda x, t, lam, cap: pr.CappedL1(lam, cap).prox(x, t)
    ),
    "l1, wrong sign": mutant("l1", lambda x, t, lam: by_hand(x, jnp.abs(x) + t * lam)),
    "l1, step squared": mutant("l1", lambda x, t, lam: soft(x, t**2 * lam)),
    "squared l2, without the half": mutant("squared l2", lambda x, t, lam: x / (1 + 2 * t * lam)),
    "outside an interval, to the farther end": mutant(
        "outside an interval",
        lambda x, t, lo, up: jnp.where((x > lo) & (x < up), jnp.where(x - lo > up - x, lo, up), x),
    ),
    "simplex, clipped and rescaled": mutant(
        "simplex", lambda x, t, r: r * (jnp.maximum(x, 0) + 1e-3) / jnp.sum(jnp.maximum(x, 0) + 1e-3)
    ),
    "l1 ball, rescaled": mutant("l1 ball", lambda x, t, r: x * r / jnp.maximum(jnp.sum(jnp.abs(x)), r)),
    "stvs, step scaling": STVS,
    "fused lasso, not a prox": FUSED,
    "vacuous under Moreau's identity": mutant("l1", vacuous),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_prox_is_not_a_global_minimiser(name: str) -> None:
    with pytest.raises(AssertionError):
        search(check_global_minimiser, MUTANTS[name], number=60, shrink=False)


@pytest.mark.parametrize(
    ("check", "name"),
    [
        (check_monotone, "vacuous under Moreau's identity"),
        (check_monotone, "outside an interval, to the farther end"),
        (check_convex, "l1, wrong sign"),
        (check_convex, "squared l2, without the half"),
        (check_convex, "fused lasso, not a prox"),
        (check_convex, "vacuous under Moreau's identity"),
    ],
)
def test_a_wrong_prox_fails_other_checks_too(check: Check, name: str) -> None:
    with pytest.raises(AssertionError):
        search(check, MUTANTS[name], shrink=False)


def test_the_wrong_proxes_of_one_step_are_right_at_that_step() -> None:
    """So that it is the range of steps in the examples that finds them."""
    x = jnp.linspace(-4.0, 4.0, 81)
    for name, step, *parameters in (
        ("mcp, one regime", 0.5, 1.0, 2.0),
        ("scad, one regime", 1.0, 1.0, 3.7),
        ("scad, two regimes", 4.0, 1.0, 3.7),
        ("negative capped l1, the authors' masks", 0.5, 1.0, 2.0),
    ):
        row = MUTANTS[name]
        right = ROWS[row.name].make(*parameters).prox(x, step)
        np.testing.assert_allclose(row.make(*parameters).prox(x, step), right, atol=1e-12)


def test_moreaus_identity_through_itself_accepts_anything() -> None:
    """Why the suite compares with independently coded conjugates."""
    x, t = jnp.linspace(-2.0, 2.0, 9), 0.7
    dual = x / t - vacuous(x, t, 1.0) / t
    np.testing.assert_allclose(vacuous(x, t, 1.0) + t * dual, x, atol=1e-12)
