"""jaxopt on a case of the suite: implicit differentiation of an inner solver under `jaxopt.ProximalGradient`.

Every oracle is wrapped so that it calls back to the host when it is *executed*, and those calls are counted:

- a gradient of g (its value, which jaxopt's line searches take with it, is free) or a value of g alone: 1;
- a product with g_yy in the linear solve, or the product with g_xy at its end: 1;
- a value of f, or its gradient (the value with it is free): 1;
- a prox of h: 1.

In jaxopt's favour: the inner solver starts at the last y (jaxopt leaves that to the user), the linear solver is plain
CG and not the default that squares the condition number, the evaluation in `init_state` is not counted, it need not
know when it is done (the true stationarity is computed beside it, uncounted), and the best of 33 settings is taken.
"""

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grid_search import Scale
from judge import TARGET, Judge
from proxbi import _tree
from proxbi.problem import Problem
from suite import Case

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # jaxopt announces on import that it is no longer maintained
    import jaxopt


class Kind(NamedTuple):
    """What takes a compilation of its own."""

    inner: str
    line_search: bool
    accelerated: bool

    def __str__(self) -> str:
        search = ", line search" if self.line_search else ""
        return f"{self.inner}{search}{', accelerated' if self.accelerated else ''}"


KINDS = [
    Kind("LBFGS", line_search=False, accelerated=True),
    Kind("LBFGS", line_search=False, accelerated=False),
    Kind("LBFGS", line_search=True, accelerated=True),
    Kind("LBFGS", line_search=True, accelerated=False),
    Kind("GradientDescent", line_search=False, accelerated=True),
]
TOLS = (1e-6, 1e-8, 1e-10)
"""Of the inner solver, relative to |g_y(x0, y0)|, and of CG."""
STEPS = (1.0, 4.0, 16.0)
"""Outer steps in units of 1 / (curvature of Phi), where there is no line search."""


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def tick(self) -> None:
        jax.debug.callback(self._count)

    def _count(self) -> None:
        self.calls += 1

    def read(self) -> int:
        jax.effects_barrier()
        return self.calls


def counted_lower(problem: Problem, counter: Counter) -> Callable[..., Any]:
    """(y, x) -> g and g_y. Pulling a vector back through g_y is one product."""

    @jax.custom_vjp
    def gradient(x: Any, y: Any) -> Any:
        counter.tick()
        return problem.grad_lower(x, y)

    def forward(x: Any, y: Any) -> Any:  # only linearises
        return problem.grad_lower(x, y), (x, y)

    def backward(at: Any, w: Any) -> Any:
        counter.tick()
        return problem.cross(*at)(w), problem.hvp(*at)(w)

    gradient.defvjp(forward, backward)
    return lambda y, x: (problem.value_lower(x, y), gradient(x, y))


def counted_upper(problem: Problem, counter: Counter) -> Callable[..., Any]:
    @jax.custom_vjp
    def value(x: Any, y: Any) -> Any:
        counter.tick()
        return problem.value_upper(x, y)

    def forward(x: Any, y: Any) -> Any:
        return problem.value_upper(x, y), (x, y)

    def backward(at: Any, w: Any) -> Any:
        counter.tick()
        return tuple(_tree.scale(w, part) for part in problem.grad_upper(*at))

    value.defvjp(forward, backward)
    return value


def outer(problem: Problem, kind: Kind, tol: Any, lower_tol: Any, step: Any, counter: Counter) -> Any:
    """jaxopt's solver for Phi + h; the lower solution is its auxiliary output and its extra argument."""
    inner = getattr(jaxopt, kind.inner)(
        fun=counted_lower(problem, counter),
        value_and_grad=True,
        maxiter=2000,
        tol=lower_tol,
        implicit_diff=True,
        implicit_diff_solve=partial(jaxopt.linear_solve.solve_cg, tol=tol, maxiter=2000),
    )
    upper = counted_upper(problem, counter)

    def phi(x: Any, start: Any) -> tuple[Any, Any]:
        y = inner.run(start, x).params
        return upper(x, y), y

    def prox(x: Any, _: Any, step: Any) -> Any:
        counter.tick()
        return problem.regularizer.prox(x, step)

    size = 0.0 if kind.line_search else lambda _: step
    return jaxopt.ProximalGradient(phi, prox, has_aux=True, stepsize=size, acceleration=kind.accelerated)


class Peer:
    """jaxopt of one kind on one case: compiled once for all tolerances and steps."""

    def __init__(self, case: Case, judge: Judge, units: Scale, kind: Kind):
        self.case, self.judge, self.units, self.kind, self.counter = case, judge, units, kind, Counter()
        self.size = _tree.norm(case.problem.grad_lower(case.x0, case.y0))

        @jax.jit
        def update(x: Any, state: Any, y: Any, tol: Any, step: Any) -> Any:
            solver = outer(case.problem, kind, tol, tol * self.size, step, self.counter)
            return solver.update(x, state, None, y)

        @jax.jit
        def init(x: Any, y: Any, tol: Any, step: Any) -> Any:
            solver = outer(case.problem, kind, tol, tol * self.size, step, self.counter)
            return solver.init_state(x, None, y)

        self.update, self.init = update, init

    def run(self, tol: float, step: float, budget: int) -> tuple[int | None, float]:
        """Calls until the target is reached (None: not within the budget), and the smallest stationarity seen."""
        numbers = jnp.asarray(tol), jnp.asarray(step / self.units.outer)
        x, y = self.case.x0, self.case.y0
        state = self.init(x, y, *numbers)
        begun = self.counter.read()
        used, least = 0, np.inf
        while used < budget:
            x, state = self.update(x, state, y, *numbers)
            y = state.aux
            stationarity = float(self.judge(x, y))
            least, used = min(least, stationarity), self.counter.read() - begun
            if stationarity <= TARGET:
                return used, stationarity
            if not stationarity < 1e6:
                break
        return None, least


def search(case: Case, units: Scale, budget: int, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """The best of all settings."""
    judge = Judge.of(case)
    best: dict[str, Any] = {"calls": None, "setting": None, "stationarity": np.inf, "settings": 0}
    for kind in KINDS:
        peer = Peer(case, judge, units, kind)
        for tol, step in itertools.product(TOLS, (0.0,) if kind.line_search else STEPS):
            calls, stationarity = peer.run(tol, step, best["calls"] or budget)
            setting = f"{kind}, tol {tol:.0e}" + (f", step {step:g} / L" if step else "")
            report(f"jaxopt {setting}: {calls} calls, stationarity {stationarity:.1e}")
            best["settings"] += 1
            first = calls is not None and (best["calls"] is None or calls < best["calls"])  # one update may overshoot
            if first or (best["calls"] is None and stationarity < best["stationarity"]):
                best |= {"calls": calls, "setting": setting, "stationarity": float(stationarity)}
    return best
