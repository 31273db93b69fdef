"""Compare solvers on one problem: objective and stationarity against oracle calls and seconds."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
from jaxtyping import PyTree

from proxbi import _check, _tree
from proxbi._minimize import minimize
from proxbi._tree import Scalar
from proxbi.callbacks import OracleBudget
from proxbi.problem import Counts, Problem
from proxbi.result import HistoryRow, Snapshot
from proxbi.solvers import Solver
from proxbi.theory.reference import Exactly


class CompareRow(HistoryRow):
    """One row of `compare`: the columns of `HistoryRow`, and three more.

    | column | |
    |---|---|
    | `solver` | its name |
    | `calls` | oracle calls so far, all kinds counted equally |
    | `status` | how the run ended, by the name of its `Status`; empty except in its last row |

    Example: `compare`.
    """

    solver: str
    calls: int
    status: str


def compare(
    problem: Problem,
    solvers: Mapping[str, Solver],
    x0: PyTree,
    y0: PyTree,
    *,
    budget: int = 10_000,
    tol: float | None = None,
    rtol: float | None = None,
    every: int = 1,
    exactly: Callable[[PyTree, PyTree], Exactly] | None = None,
) -> list[CompareRow]:
    r"""Run each solver from the same start until it has used `budget` oracle calls, all kinds counted equally.

    **Arguments:**

    - `problem`, `x0`, `y0`: as for `minimize`.
    - `solvers`: solvers by name; the names appear in the rows.
    - `budget`: a run ends with the step in which it reaches this number of calls.
    - `tol`, `rtol`: end a run earlier, as in `minimize`.
    - `every`: outer steps between rows. Short chunks cost time, which the seconds contain: for timings use 10.
    - `exactly`: (x, y) -> $y^*(x), \Phi(x), \nabla\Phi(x)$, started at y if needed. Without it every solver is judged
      by its own y and hypergradient, which makes an inexact one look better than it is. With it `objective` is
      $\Phi(x) + h(x)$ and `stationarity` is $|\nabla\Phi(x) + s|$ with the $s \in \partial h(x)$ of the last prox; its
      work is not counted.

    **Returns:** a `CompareRow` for each row of each history, after a first row for the start. Compilation time is not
    included. A solver that breaks down ends with that status, and the others still run. `plot.compare(rows)` draws
    them.

    >>> import jax.numpy as jnp
    >>> from proxbi import AID, CG, GradientDescent, ProxBiO
    >>> from proxbi.analytic import scalar_problem
    >>> def solver(T):
    ...     return ProxBiO(AID(GradientDescent(0.25, steps=T), CG(steps=1)), step_size=0.5)
    >>> start = jnp.array(0.0)
    >>> rows = compare(scalar_problem(), {"T = 1": solver(1), "T = 5": solver(5)}, start, start, budget=60)
    >>> for row in rows:
    ...     if row["status"]:
    ...         print(row["solver"], row["step"], row["calls"], row["status"])
    T = 1 8 64 BUDGET
    T = 5 5 60 BUDGET
    """
    given: Any = solvers
    if not isinstance(given, Mapping):
        raise TypeError(f"solvers must be a dict of solvers by name, got {type(given).__name__}.")
    _check.positive_int("budget", budget)
    rows: list[CompareRow] = []
    for name, solver in solvers.items():
        ledger = _Ledger(name, problem, exactly)
        options: dict[str, Any] = {"steps": budget, "tol": tol, "rtol": rtol, "every": every, "throw": False}
        result = minimize(problem, x0, y0, solver, callbacks=[ledger, OracleBudget(budget)], **options)
        started = ledger.start(x0, y0)
        rows += [started, *ledger.rows]
        rows[-1]["status"] = result.status.name
    return rows


class _Ledger:
    """A callback that keeps every row, in its own words."""

    def __init__(self, name: str, problem: Problem, exactly: Callable[[PyTree, PyTree], Exactly] | None):
        self.name, self.problem, self.exactly = name, problem, exactly
        self.rows: list[CompareRow] = []

    def __call__(self, row: HistoryRow, snapshot: Snapshot) -> None:
        state, known = snapshot.state, {}
        if self.exactly is not None:
            known = _true(self.problem, self.exactly, state.x, state.y, state.subgradient)
        self.rows.append(self._row({**row, **jax.tree.map(float, known)}, int(snapshot.counts.total)))

    def start(self, x0: PyTree, y0: PyTree) -> CompareRow:
        """The row before the first step."""
        upper, regularizer = (float(v) for v in (self.problem.value_upper(x0, y0), self.problem.regularizer.value(x0)))
        value = upper if self.exactly is None else float(self.exactly(x0, y0).value)
        unknown = dict.fromkeys(("stationarity", "relative", "lower_residual", "linear_residual"), float("nan"))
        row = {"step": 0, "objective": value + regularizer, "upper": upper, "regularizer": regularizer}
        return self._row(row | unknown | Counts().as_dict() | {"seconds": 0.0}, 0)

    def _row(self, row: dict[str, Any], calls: int) -> CompareRow:
        return cast(CompareRow, {"solver": self.name, **row, "calls": calls, "status": ""})


@jax.jit
def _true(problem: Problem, exactly: Any, x: PyTree, y: PyTree, subgradient: PyTree) -> dict[str, Scalar]:
    _, value, gradient = exactly(x, y)
    stationarity = _tree.norm(_tree.axpy(1, subgradient, gradient))
    return {"objective": value + problem.regularizer.value(x), "stationarity": stationarity}
