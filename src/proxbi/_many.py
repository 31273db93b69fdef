"""`minimize_many` and `sweep`: several starts, or several solvers, in one compiled program."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxbi import _batch, _check, _driver, _engine
from proxbi._validate import checked
from proxbi.certificate import Bounds
from proxbi.problem import Problem
from proxbi.result import Result, SolveError, Status
from proxbi.solvers import AdaptiveProxBiO, Solver

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ManyResult:
    """The result of `minimize_many` and `sweep`. `str(result)` is a table.

    Examples: `minimize_many`, `sweep`.
    """

    results: list[Result]
    """One for each run, as `minimize` returns it; the seconds are those of all runs of one program together."""
    settings: list[dict[str, float]] = field(default_factory=list)
    """For a sweep: the numbers in which the solvers differ, by name."""

    @property
    def best(self) -> Result:
        """The result with the lowest objective, among those that did not break down if there are any."""
        return min(self.results, key=_rank)

    @property
    def statuses(self) -> list[Status]:
        """How each run ended."""
        return [result.status for result in self.results]

    def to_frame(self) -> "pandas.DataFrame":
        """One row for each run: its settings, its status, what it found and what it cost."""
        import pandas

        own = self.settings or [{} for _ in self.results]
        rows = (settings | _row(result) for settings, result in zip(own, self.results, strict=True))
        return pandas.DataFrame(list(rows)).rename_axis("run")

    def __str__(self) -> str:
        ended = Counter(status.name for status in self.statuses)
        best = next(k for k, result in enumerate(self.results) if result is self.best)
        lines = [
            f"{len(self.results)} runs: {', '.join(f'{count} {name}' for name, count in ended.items())}; "
            f"best: run {best}, objective {self.best.objective:.6g}.",
            f"{'run':>5}  {'status':<18} {'steps':>5} {'objective':>13} {'stationarity':>12} {'calls':>7}",
        ]
        for k, r in enumerate(self.results):
            numbers = f"{r.steps:>5} {r.objective:>13.6g} {r.stationarity:>12.1e} {r.counts.total:>7}"
            lines.append(f"{k:>5}  {r.status.name:<18} {numbers}")
        return "\n".join(lines)


def _row(result: Result) -> dict[str, Any]:
    return {
        "status": result.status.name,
        "steps": result.steps,
        "objective": result.objective,
        "stationarity": result.stationarity,
        "calls": int(result.counts.total),
        **result.counts.as_dict(),
    }


def _rank(result: Result) -> tuple[bool, float]:
    return result.status.failed, result.objective if np.isfinite(result.objective) else np.inf


def minimize_many(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    solver: Solver | None = None,
    *,
    steps: int = 1000,
    tol: float | None = None,
    rtol: float | None = None,
    bounds: Bounds | None = None,
    throw: bool = True,
) -> ManyResult:
    """Minimise f(x, y*(x)) + h(x) over x from several starts at once, and keep the best result.

    If Phi + h is not convex, `minimize` finds a stationary point near its start. Many starts find several of these, in
    about the time of the longest run if the device has room for all.

    **Arguments:**

    - `problem`: what to solve.
    - `x0s`, `y0s`: the starts: as x0 and y0 of `minimize`, with one more axis in front, over the starts, in every leaf.
    - `solver`, `steps`, `tol`, `rtol`, `bounds`: as in `minimize`, for each start.
    - `throw`: raise `SolveError` if every run broke down before it found a point better than its start.

    **Returns:** a `ManyResult`: `.best`, `.results` (a `Result` for each start, with its own status), `.statuses`.
    A bad start does not affect the others. Ctrl-C returns the last iterates.

    >>> from proxbi import Problem
    >>> def lower(x, y):
    ...     return jnp.sum((y - x) ** 2)
    >>> def upper(x, y):  # minima near -1 and 1, of which that near -1 is the lower one
    ...     return jnp.sum((y**2 - 1) ** 2 + 0.3 * y)
    >>> starts = jnp.array([[1.2], [0.5], [-0.5]])
    >>> found = minimize_many(Problem(upper, lower), starts, jnp.zeros((3, 1)))
    >>> print([f"{result.x[0]:.2f}" for result in found.results], f"{found.best.x[0]:.2f}")
    ['0.96', '0.96', '-1.04'] -1.04
    """
    _check.positive_int("steps", steps)
    _require_bounds(bounds)
    x0s, y0s = _check.float_tree("x0s", x0s), _check.float_tree("y0s", y0s)
    _require_starts(x0s, y0s)
    goal = _driver.goal_of(tol, rtol, solver is None, jax.tree.leaves(x0s)[0].dtype)
    solver = AdaptiveProxBiO() if solver is None else solver
    problem, _, _, _ = checked(problem, solver, *_batch.picked((x0s, y0s), jnp.int32(0)))
    solvers = [solver] * len(jax.tree.leaves(x0s)[0])
    return _unless_all_failed(ManyResult(_batch.together(problem, solvers, x0s, y0s, goal, bounds, steps)), throw)


def sweep(
    problem: Problem,
    solvers: Sequence[Solver],
    x0: PyTree,
    y0: PyTree,
    *,
    engine: Literal["vmap", "loop", "joblib", "dask"] = "vmap",
    batch: int = 64,
    steps: int = 1000,
    tol: float | None = None,
    rtol: float | None = None,
    bounds: Bounds | None = None,
    throw: bool = True,
    scheduler: str | None = None,
    workers: int | None = None,
) -> ManyResult:
    """Run several solvers from one start, for example one for each of several step sizes, and keep the best result.

    Solvers that differ in numbers only run as one program, which reads the data once for all of them.

    **Arguments:**

    - `problem`, `x0`, `y0`, `steps`, `tol`, `rtol`, `bounds`: as in `minimize`, for each solver.
    - `solvers`: which to run. Those of different kinds, or with different numbers of inner steps, need programs of
      their own, one after the other.
    - `engine`: "vmap" is described above; "loop" runs them one by one, which needs the least memory; "joblib" does so
      in `workers` processes of this machine (by default one for each core), and "dask" on a cluster: that of the
      `scheduler`, tcp://host:8786, or a new one on this machine. Results equal those of "loop". Every run gets a
      copy of the problem: for large data prefer "vmap".
    - `batch`: the largest number of runs in one program. Each needs memory of its own, besides the data.
    - `throw`: raise `SolveError` if every run broke down before it found a point better than x0.

    **Returns:** a `ManyResult`: `.best`, `.results` in the order of `solvers`, `.to_frame()` with the numbers in which
    they differ.

    >>> from proxbi import paper_solver
    >>> from proxbi.analytic import scalar_problem
    >>> solvers = [paper_solver("BiO-AID", alpha=0.25, beta=beta, T=5) for beta in (0.01, 0.1, 0.5)]
    >>> found = sweep(scalar_problem(), solvers, jnp.array(0.0), jnp.array(0.0), steps=10)
    >>> print([f"{result.x:.2f}" for result in found.results])  # the minimiser is 2
    ['0.19', '1.31', '2.00']
    >>> found.settings[0]
    {'step_size': 0.01}
    """
    _check.positive_int("steps", steps)
    _check.positive_int("batch", batch)
    if engine not in ("vmap", "loop", "joblib", "dask"):
        raise ValueError(f'engine must be "vmap", "loop", "joblib" or "dask", got {engine!r}.')
    if scheduler is not None and engine != "dask":
        raise ValueError('scheduler is for engine="dask".')
    if not solvers:
        raise ValueError("solvers must contain at least one solver.")
    _require_bounds(bounds)
    for solver in solvers:
        problem, x0, y0, _ = checked(problem, solver, x0, y0)
    goal = _driver.goal_of(tol, rtol, False, jax.tree.leaves(x0)[0].dtype)
    common = (problem, x0, y0, goal, bounds, steps)
    groups = list(_alike(solvers, batch if engine == "vmap" else 1))
    of_groups = [[solvers[k] for k in group] for group in groups]
    if engine in ("vmap", "loop"):
        found = [_together(*common, ours) for ours in of_groups]
    else:
        with _engine.started(engine, scheduler, workers) as run:  # type: ignore[arg-type]  # it is one of the two
            named = zip((f"solvers[{group[0]}]" for group in groups), of_groups, strict=True)
            jobs = [_engine.packed(*ours, name=name) for name, ours in named]
            found = list(run(_elsewhere, _engine.packed(*common, name="problem"), jobs))
    results = {
        k: result for group, ours in zip(groups, found, strict=True) for k, result in zip(group, ours, strict=True)
    }
    ordered = [results[k] for k in range(len(solvers))]
    return _unless_all_failed(ManyResult(ordered, _settings(solvers)), throw)


def _together(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    goal: Any,
    bounds: Bounds | None,
    steps: int,
    solvers: Sequence[Solver],
) -> list[Result]:
    """Solvers that differ in numbers only, from one start."""
    x0s, y0s = (jax.tree.map(lambda *starts: jnp.stack(starts), *[start] * len(solvers)) for start in (x0, y0))
    return _batch.together(problem, list(solvers), x0s, y0s, goal, bounds, steps)


def _elsewhere(common: _engine.Packed, solvers: _engine.Packed) -> list[Result]:
    """The same in another process."""
    problem, x0, y0, goal, bounds, steps = _engine.unpacked(common)
    return _together(problem, x0, y0, goal, bounds, steps, _engine.unpacked(solvers))


def _alike(solvers: Sequence[Solver], most: int) -> Iterator[list[int]]:
    """The places of solvers that differ in numbers only, at most so many at a time."""
    groups: dict[Any, list[int]] = {}
    for k, solver in enumerate(solvers):
        leaves, structure = jax.tree.flatten(solver)
        groups.setdefault((structure, tuple(map(jnp.shape, leaves))), []).append(k)
    for group in groups.values():
        yield from (group[start : start + most] for start in range(0, len(group), most))


def _settings(solvers: Sequence[Solver]) -> list[dict[str, float]]:
    """The numbers that are not the same in all solvers, by their place in them."""
    found = [
        {jax.tree_util.keystr(path).lstrip("."): float(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(one)}
        for one in solvers
    ]
    same = {name for name in found[0] if all(one.get(name) == found[0][name] for one in found)}
    return [{name: value for name, value in one.items() if name not in same} for one in found]


def _unless_all_failed(found: ManyResult, throw: bool) -> ManyResult:
    if throw and all(result.status.failed and not result.improved for result in found.results):
        raise SolveError(found.best)
    return found


def _require_bounds(bounds: Bounds | None) -> None:
    if bounds is not None and not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a proxbi Bounds such as Bounds(mu=0.1, cross=1.0), got {bounds!r}.")


def _require_starts(x0s: PyTree, y0s: PyTree) -> None:
    """One number of starts for all leaves."""
    named = [
        (name + jax.tree_util.keystr(path), leaf.shape)
        for name, tree in (("x0s", x0s), ("y0s", y0s))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    for name, shape in named:
        if not shape:
            raise ValueError(f"{name} is a single number, but its first axis must be that of the starts.")
        if shape[0] != named[0][1][0]:
            first, other = named[0]
            raise ValueError(
                f"{first} has {other[0]} starts, but {name} has {shape[0]} (shape {shape}): the first axis of every "
                "leaf of x0s and y0s must be that of the starts. Repeat what is shared, for example with jnp.stack."
            )
