"""The paper's method at its best: a search over step sizes, momentum and inner steps, with hindsight.

Every setting of ProxBiO with AID starts from the case's x0, y0 and counts its oracle calls until the *true*
stationarity (`judge.Judge`, not counted) is at most 1e-6 of that at x0, at an objective that gains at least 99 % of
what the given solution gains. All settings of one (T, N) race in one compiled program; a setting leaves the race when
it diverges or has used more calls than the best that is known. In the paper's favour:

- L, kappa and the curvature of Phi, in units of which the grid is laid, are known beforehand, at the solution too;
- the gradient that AID takes only to report the lower residual is not counted;
- a setting need not know by itself that it is done.

A point is looked at when 1/200 more steps were taken than at the last look (below 200 steps: always), and only once the
setting's own estimate has come within a factor 10 of the target.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from judge import TARGET, Judge, curvature
from proxbi.hypergradient import AID
from proxbi.linear import CG
from proxbi.lower import Nesterov
from proxbi.problem import Problem
from proxbi.solvers import ProxBiO
from proxbi.theory.lanczos import lower_spectrum
from proxbi.theory.reference import Repeated
from suite import Case

LOOK, NEAR = 200, 10
_STEPS = (1, 2, 5, 10, 20)
INNER = sorted(itertools.product(_STEPS, _STEPS), key=sum)
"""All pairs of T lower steps and N steps of CG, the cheap first: the sooner one gets there, the shorter the others
run."""
BETAS = tuple(10 ** (k / 4) for k in range(-8, 13))
"""Outer step sizes in units of 1 / (curvature of Phi): five decades, four to each."""


class Scale(NamedTuple):
    """What the grid is laid in units of."""

    L: float
    """The largest curvature of g in y."""
    kappa: float
    outer: float
    """The largest curvature of Phi."""


def scale(case: Case, solution: PyTree) -> Scale:
    """Estimated at the start and at the solution, the larger of the two."""
    spectra = [
        lower_spectrum(case.problem, x, case.exactly(x, case.y0).solution, steps=60) for x in (case.x0, solution)
    ]
    L = max(float(s.largest) for s in spectra)
    outer = max(float(curvature(case, x)) for x in (case.x0, solution))
    return Scale(L, max(float(s.largest / s.smallest) for s in spectra), outer)


class Setting(NamedTuple):
    """The paper's letters; eta = 0 is gradient descent."""

    alpha: float
    eta: float
    beta: float
    T: int
    N: int

    def __str__(self) -> str:
        momentum = f", eta {self.eta:.2g}" if self.eta else ""
        return f"T {self.T}, N {self.N}, alpha {self.alpha:.2g}{momentum}, beta {self.beta:.2g}"


def solver(lane: Float[Array, "3"], T: Array, N: int) -> ProxBiO:
    """Proximal BiO-AIDm with lane = (alpha, eta, beta); with eta = 0 that is BiO-AID."""
    alpha, eta, beta = lane
    return ProxBiO(AID(Repeated(Nesterov(alpha, eta, steps=1), T), CG(N, tol=1e-10)), beta)


def lanes(units: Scale, betas: Sequence[float] = BETAS) -> Float[np.ndarray, "lanes 3"]:
    """All (alpha, eta, beta) for one (T, N): plain steps of 1/L and 1.8/L, and Nesterov with two momenta."""
    root = np.sqrt(units.kappa)
    lower = [(1.0, 0.0), (1.8, 0.0), (1.0, 0.7), (1.0, (root - 1) / (root + 1))]
    return np.array([(a / units.L, eta, b / units.outer) for a, eta in lower for b in betas])


class Best(NamedTuple):
    """The outcome of a search."""

    calls: int | None = None
    """To the target, of the best setting; None if none got there within the budget."""
    steps: int | None = None
    setting: Setting | None = None
    """The best, or the one that came closest."""
    stationarity: float = np.inf
    """Relative, of that setting: the target, or the closest that any got within the budget."""
    settings: int = 0
    """How many took part."""


def search(
    case: Case,
    solution: PyTree,
    budget: int = 100_000,
    inner: Iterable[tuple[int, int]] = INNER,
    betas: Sequence[float] = BETAS,
    report: Callable[[str], None] = lambda line: None,
) -> Best:
    """The best setting for `case`, whose `solution` tells the units of the grid."""
    judge, grid = Judge.of(case, solution), lanes(scale(case, solution), betas)
    best = Best()
    for T, N in inner:
        limit = budget if best.calls is None else best.calls
        raced = race(case.problem, judge, jnp.asarray(grid), jnp.int32(T), N, case.x0, case.y0, jnp.int32(limit))
        best = _better(best, raced, judge, grid, T, N)._replace(settings=best.settings + len(grid))
        report(f"T {T} N {N}: {best.calls} calls, {best.setting}, stationarity {best.stationarity:.1e}")
    return best


def _better(best: Best, raced: "Race", judge: Judge, grid: np.ndarray, T: int, N: int) -> Best:
    found = np.asarray(raced.found)
    first = int(np.argmin(found))
    if np.isfinite(found[first]):
        return Best(int(found[first]), int(raced.steps[first]), _setting(grid[first], T, N), TARGET)
    if best.calls is None:
        reached = np.asarray(_reached(judge, raced.states))
        closest = int(np.argmin(reached))
        if reached[closest] < best.stationarity:
            return best._replace(setting=_setting(grid[closest], T, N), stationarity=float(reached[closest]))
    return best


def _setting(lane: np.ndarray, T: int, N: int) -> Setting:
    alpha, eta, beta = map(float, lane)
    return Setting(alpha, eta, beta, T, N)


class Race(NamedTuple):
    """The carry of a race; one entry for each lane."""

    states: PyTree
    calls: Array
    alive: Array
    found: Array
    """The calls at which the target was seen to be reached; infinity before."""
    steps: Array
    """The outer steps until then."""
    step: Array
    next_look: Array


@eqx.filter_jit
def race(problem: Problem, judge: Judge, grid: Array, T: Array, N: int, x0: PyTree, y0: PyTree, budget: Array) -> Race:
    """Run every row (alpha, eta, beta) of `grid` until one wins and the others could only be worse."""
    count, dtype = len(grid), judge.start.dtype

    def one(lane: Array, state: PyTree) -> tuple[PyTree, Array, Array]:
        state, info = solver(lane, T, N).step(problem, state, jax.random.key(0))
        return state, info.stationarity, info.counts.total - 1  # without the gradient that only reports

    def body(at: Race) -> Race:
        states, own, calls = jax.vmap(one)(grid, at.states)  # `own` is about the x that the step started from
        due = at.step >= at.next_look
        promising = at.alive & due & (own <= NEAR * TARGET * judge.start)
        nobody = jnp.full(count, jnp.inf, dtype)
        reached = jax.lax.cond(
            jnp.any(promising), lambda: _look(judge, promising, at.states.x, states.y), lambda: nobody
        )
        solved = reached <= TARGET
        found = jnp.where(solved, at.calls.astype(dtype), at.found)
        steps = jnp.where(solved, at.step, at.steps)
        calls = at.calls + calls
        affordable = calls.astype(dtype) < jnp.minimum(budget.astype(dtype), jnp.min(found))
        lost = promising & jnp.isinf(reached)  # as good as stationary, above the ceiling: it will not come down
        alive = at.alive & ~solved & ~lost & jnp.isfinite(own) & affordable
        next_look = jnp.where(due, at.step + 1 + at.step // LOOK, at.next_look)
        return Race(states, calls, alive, found, steps, at.step + 1, next_look)

    init = jax.vmap(lambda lane: solver(lane, T, N).init(problem, x0, y0))
    none, unknown = jnp.zeros(count, jnp.int32), jnp.full(count, jnp.inf, dtype)
    start = Race(init(grid), none, none == 0, unknown, none, jnp.int32(0), jnp.int32(0))
    return jax.lax.while_loop(lambda at: jnp.any(at.alive), body, start)


def _look(judge: Judge, asked: Array, x: PyTree, y: PyTree) -> Array:
    """The true stationarity of the lanes asked for, infinity for the others: one after the other, as most are not."""

    def each(lane: tuple[Array, PyTree, PyTree]) -> Array:
        unknown = jnp.full_like(judge.start, jnp.inf)
        seen = jax.lax.cond(lane[0], lambda: judge(lane[1], lane[2]), lambda: unknown)
        return jnp.where(jnp.isnan(seen), unknown, seen)

    return jax.lax.map(each, (asked, x, y))


@jax.jit
def _reached(judge: Judge, states: PyTree) -> Array:
    """The true stationarity of all lanes but those on the way to infinity, where a lower solve would take for ever."""
    leaves = jax.tree.leaves((states.x, states.y))
    sane = [jnp.all(jnp.abs(leaf.reshape(len(leaf), -1)) < 1e8, axis=1) for leaf in leaves]
    lenient = eqx.tree_at(lambda j: j.ceiling, judge, jnp.full_like(judge.ceiling, jnp.inf))
    return _look(lenient, jnp.all(jnp.stack(sane), axis=0), states.x, states.y)
