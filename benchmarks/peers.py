r"""L-BFGS-B, FISTA and Adam on a case of the suite, each on *exact* hypergradients.

Such a method asks for Phi, or for Phi and its gradient, at one x after another. It is given the truth (`Case.exactly`)
and charged what that costs when it is bought with oracle calls, from the last y and adjoint:

- the lower level: Newton's method until |g_y| is 1e-8 of that at (x0, y0), each step by CG (Eisenstat and Walker's
  tolerances), shortened until |g_y| falls;
- the adjoint equation: CG until its residual is 1e-8 of |f_y|;
- a value of f, or its gradient (the value with it is free), the product with g_xy, and each prox: 1.

In their favour: the truth is better than what they pay for, the products that only measure residuals are not counted,
and they need not know when they are done: each point that they look at is judged, uncounted.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from judge import TARGET, Judge
from proxbi import _tree
from proxbi.linear import CG
from proxbi.problem import Counts, Problem
from proxbi.regularizers import Box, Zero
from suite import Case

TOLERANCE = 1e-8
"""Of the lower level and of the adjoint equation."""
MOST_NEWTON_STEPS, MOST_HALVINGS, MOST_CG_STEPS = 50, 30, 2000
LOOSEST = 0.1
"""The tolerance of the first CG."""


class _Newton(NamedTuple):
    y: PyTree
    gradient: PyTree
    size: Array
    counts: Counts
    steps: Array
    falling: Array


@jax.jit
def solve_lower(problem: Problem, x: PyTree, y: PyTree, goal: Array) -> tuple[PyTree, Counts]:
    """y with |g_y(x, y)| <= goal, by Newton's method from y."""

    def step(at: _Newton) -> _Newton:
        tol = jnp.maximum(jnp.minimum(LOOSEST, jnp.sqrt(at.size * TOLERANCE / goal)), 0.5 * goal / at.size)
        direction, info = CG(MOST_CG_STEPS, tol).solve(problem.hvp(x, at.y), at.gradient)

        def look(trial: tuple[Any, ...]) -> tuple[Any, ...]:
            length, tries = trial[4] / 2, trial[5] + 1
            moved = _tree.axpy(-length, direction, at.y)
            value, gradient = problem.value_lower(x, moved), problem.grad_lower(x, moved)
            size = jnp.where(jnp.isfinite(value), _tree.norm(gradient), jnp.inf)
            return moved, gradient, size, size < at.size, length, tries

        start = at.y, at.gradient, at.size, jnp.asarray(False), jnp.full_like(at.size, 2), jnp.int32(0)
        moved, gradient, size, falls, _, tries = jax.lax.while_loop(
            lambda trial: ~trial[3] & (trial[5] < MOST_HALVINGS), look, start
        )
        counts = at.counts + Counts(hvp=info.iterations, grad_lower=tries)
        y, gradient = _tree.where(falls, (moved, gradient), (at.y, at.gradient))
        return _Newton(y, gradient, jnp.where(falls, size, at.size), counts, at.steps + 1, falls)

    gradient = problem.grad_lower(x, y)
    none = jax.tree.map(jnp.int32, Counts(grad_lower=1))
    first = _Newton(y, gradient, _tree.norm(gradient), none, jnp.int32(0), jnp.asarray(True))
    last = jax.lax.while_loop(lambda at: (at.size > goal) & at.falling & (at.steps < MOST_NEWTON_STEPS), step, first)
    return last.y, last.counts


@jax.jit
def solve_adjoint(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> tuple[PyTree, Counts]:
    """v with g_yy v = f_y, from v, and what the gradient of Phi takes."""
    v, info = CG(MOST_CG_STEPS, TOLERANCE).solve(problem.hvp(x, y), problem.grad_upper(x, y)[1], v)
    return v, Counts(hvp=info.iterations + 1, grad_upper=1, cross=1)


class Done(Exception):
    """The target was reached, or the budget is used up."""


class Oracle:
    """Phi and its gradient at flat vectors x, and what they cost; ends the method by `Done`."""

    def __init__(self, case: Case, judge: Judge, budget: int):
        flat, self.unravel = ravel_pytree(case.x0)
        self.case, self.judge, self.budget = case, judge, budget
        self.x0, self.y, self.v = np.asarray(flat), case.y0, _tree.zeros_like(case.y0)
        first = _tree.norm(case.problem.grad_lower(case.x0, case.y0))
        self.goal = TOLERANCE * jnp.where(first > 0, first, 1)
        self.calls, self.reached, self.stationarity, self.objective = 0, False, np.inf, np.inf

    def value(self, x: np.ndarray) -> float:
        """Phi(x)."""
        value, _ = self._look(x)
        self.calls += 1
        return value

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Phi(x) and grad Phi(x)."""
        value, gradient = self._look(x)
        self.v, counts = solve_adjoint(self.case.problem, self.unravel(jnp.asarray(x)), self.y, self.v)
        self.calls += int(counts.total)
        return value, gradient

    def prox(self, x: np.ndarray, step: Any) -> np.ndarray:
        """Of h; a step for each entry where h is separable."""
        self.calls += 1
        return np.asarray(_prox(self.case.problem.regularizer, self.unravel, jnp.asarray(x), jnp.asarray(step)))

    def regularizer(self, x: np.ndarray) -> float:
        return float(self.case.problem.regularizer.value(self.unravel(jnp.asarray(x))))

    def _look(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        if self.calls > self.budget or not np.all(np.isfinite(x)):
            raise Done
        tree = self.unravel(jnp.asarray(x))
        self.y, counts = solve_lower(self.case.problem, tree, self.case.inside(self.y), self.goal)
        self.calls += int(counts.total)
        at, stationarity = _truth(self.judge, tree, self.y)
        if not np.isfinite(float(at.value)):
            raise Done
        self.stationarity = min(self.stationarity, float(stationarity))
        if stationarity <= TARGET:
            self.reached, self.objective = True, float(at.value) + self.regularizer(x)
            raise Done
        return float(at.value), np.asarray(ravel_pytree(at.gradient)[0])


@jax.jit
def _truth(judge: Judge, x: PyTree, y: PyTree) -> Any:
    at = judge.exactly(x, y)
    return at, judge.measure(x, at.gradient)


def _prox(regularizer: Any, unravel: Any, x: Array, step: Array) -> Array:
    if step.ndim == 0:
        return ravel_pytree(regularizer.prox(unravel(x), step))[0]
    return ravel_pytree(jax.tree.map(regularizer.prox, unravel(x), unravel(step)))[0]


Row = dict[str, Any]
Method = Callable[[Oracle], None]


def run(case: Case, judge: Judge, budget: int, method: Method, setting: str) -> Row:
    """Calls until the target is reached, None if it is not within the budget."""
    oracle = Oracle(case, judge, budget)
    with contextlib.suppress(Done):
        method(oracle)
    return {
        "calls": oracle.calls if oracle.reached else None,
        "setting": setting,
        "stationarity": oracle.stationarity,
        "objective": oracle.objective,
    }


# ---------------------------------------------------------------------------------------------------------- L-BFGS-B

MOST_RESTARTS = 10


def lbfgsb(case: Case, budget: int) -> Row | None:
    """scipy's; None where h is neither 0 nor a box. Where its line search gives up it is started again."""
    h = case.problem.regularizer
    if not isinstance(h, Zero | Box):
        return None
    ends = (float(h.lower), float(h.upper)) if isinstance(h, Box) else (None, None)

    def method(oracle: Oracle) -> None:
        x, bounds = oracle.x0, [ends] * len(oracle.x0)
        options = {"ftol": 0.0, "gtol": 0.0, "maxiter": budget, "maxfun": budget}
        for _ in range(MOST_RESTARTS):
            found = scipy.optimize.minimize(
                oracle.value_and_gradient, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options
            )
            if np.array_equal(found.x, x):
                return
            x = found.x

    return run(case, Judge.of(case), budget, method, "")


# ------------------------------------------------------------------------------------------------------------- FISTA

SHORTER, LONGER = 2.0, 0.9
"""Of the estimate of the curvature: what a failed trial multiplies it with, and what every step does at first."""
SLACK = 1e-12
"""Of Phi, relative: rounding must not fail a trial."""


# Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm", 2009, with a curvature that may fall again
# (Scheinberg, Goldfarb, Bai, 2014), and O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes",
# 2015: the momentum is dropped where it points uphill.
def fista(case: Case, budget: int) -> Row:
    """With backtracking and adaptive restart."""

    def method(oracle: Oracle) -> None:
        x = z = oracle.x0
        momentum, curvature = 1.0, None
        value, gradient = oracle.value_and_gradient(z)
        while True:
            if curvature is None:  # such that the first trial moves x by a thousandth of its size
                curvature = np.linalg.norm(gradient) / (1e-3 * (1 + np.linalg.norm(x)))
            curvature *= LONGER
            while True:
                moved = oracle.prox(z - gradient / curvature, 1 / curvature)
                step = moved - z
                model = value + gradient @ step + 0.5 * curvature * step @ step
                if oracle.value(moved) <= model + SLACK * abs(value):
                    break
                curvature *= SHORTER
                if not np.any(step):
                    return
            if (z - moved) @ (moved - x) > 0:
                momentum = 1.0
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            z = moved + (momentum - 1) / following * (moved - x)
            x, momentum = moved, following
            value, gradient = oracle.value_and_gradient(z)

    return run(case, Judge.of(case), budget, method, "")


# -------------------------------------------------------------------------------------------------------------- Adam

ADAM_STEPS = (1e-3, 1e-2, 1e-1, 1.0)
DECAYS = (0.9, 0.999)
TINY = 1e-12
"""Adam's epsilon: gradients must be allowed to become small."""


# Kingma and Ba, "Adam: a method for stochastic optimization", 2015; with a prox in the same metric: Yun, Lozano, Yang,
# "Adaptive proximal gradient methods for structured neural networks", 2021. Where h is not separable there is no prox
# in a diagonal metric: there all entries share one second moment.
def adam(case: Case, budget: int) -> Row:
    """With the best of a few step sizes: the fewest calls to an objective that no other falls much below."""
    judge, rows = Judge.of(case), []
    for size in ADAM_STEPS:

        def method(oracle: Oracle, size: float = size) -> None:
            separable = case.problem.regularizer.separable
            x, step = oracle.x0, 0
            first = second = np.zeros_like(x) if separable else np.zeros(())
            while True:
                _, gradient = oracle.value_and_gradient(x)
                square = gradient**2 if separable else np.mean(gradient**2)
                step += 1
                first = DECAYS[0] * first + (1 - DECAYS[0]) * gradient
                second = DECAYS[1] * second + (1 - DECAYS[1]) * square
                steps = size / (np.sqrt(second / (1 - DECAYS[1] ** step)) + TINY)
                x = oracle.prox(x - steps * first / (1 - DECAYS[0] ** step), steps)

        rows.append(run(case, judge, budget, method, f"step {size:g}"))
    reached = [row for row in rows if row["calls"] is not None]
    if not reached:
        return min(rows, key=lambda row: row["stationarity"])
    least = min(row["objective"] for row in reached)
    start = float(case.exactly(case.x0, case.y0).value + case.problem.regularizer.value(case.x0))
    good = [row for row in reached if row["objective"] <= least + 0.01 * abs(start - least)]
    return min(good, key=lambda row: row["calls"])


PEERS = {"lbfgsb": lbfgsb, "fista": fista, "adam": adam}
