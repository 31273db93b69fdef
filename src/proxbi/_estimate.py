r"""How stationary a point is, from rows that come block by block: some of them, or all.

d + s is linear in means over rows, which are added up. If only n of N rows of a level are evaluated, they are cut
into K groups; with d_k + s what group k says and d + s their mean,

    e^2 = (1 - n / N) sum_k |d_k - d|^2 / (K (K - 1))

estimates E |d - E d|^2, and |d + s| + 2 e is what is reported: it is rarely too small. y and v are those of the run;
what is wrong with them is not part of it, and is seen in the residuals beside it.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxbi import _compile, _tree
from proxbi.certificate import Certificate
from proxbi.problem import Counts, Problem, on_batches
from proxbi.rows import Rows, Sampling
from proxbi.rows._batches import LEVELS, Level
from proxbi.solvers import BLOCK, OnBatches
from proxbi.solvers.stochastic import Linear
from proxbi.solvers.stochastic._scale import entry_for_each_row

_GROUPS = 10  # the standard error is itself right to a fifth
_SEED = 0x68E31DA4  # of the evaluated rows, the same in each certificate: changes are then those of the point
_SIGMAS = 2.0


def estimated(problem: Problem, rows: Rows, solver: OnBatches, state: Any) -> Certificate:
    """The certificate of `state` from `solver.certificate_rows` rows of each level, or from all."""
    if not isinstance(solver, Linear):
        raise TypeError(f"certificate_rows and rows on the host are not for {type(solver).__name__}.")
    some = solver.certificate_rows
    total = max(len(getattr(rows, level)) for level in LEVELS)
    if some is None or some >= total:
        means: dict[Level, PyTree] = {level: _mean(problem, rows, solver, state, level, None) for level in LEVELS}
        return _certificate(problem, rows, solver, state, [means], total)
    groups = min(_GROUPS, some)
    parts = [
        {level: _mean(problem, rows, solver, state, level, _group(rows, level, some, k, groups)) for level in LEVELS}
        for k in range(groups)
    ]
    return _certificate(problem, rows, solver, state, parts, some)


def require_rows_for(problem: Problem, solver: OnBatches, x: PyTree) -> None:
    """Refuse an estimate from some rows where each row has an entry of x of its own: the others would be missing."""
    some = solver.certificate_rows
    if some is not None and entry_for_each_row(problem, x) and some < problem.lower_data.of:
        raise ValueError("certificate_rows must be None, or all, where x has an entry for each row.")


def _group(rows: Rows, level: Level, some: int, number: int, groups: int) -> np.ndarray:
    """The rows of a group."""
    count = len(getattr(rows, level))
    drawn = Sampling(min(some, count), count).index(jnp.full(2, _SEED, jnp.uint32), 0)
    return np.array_split(np.asarray(drawn), groups)[number]


def _mean(problem: Problem, rows: Rows, solver: Linear, state: Any, level: Level, index: np.ndarray | None) -> PyTree:
    """The means over these rows of a level, or over all, block by block."""
    count = len(getattr(rows, level)) if index is None else len(index)
    total = None
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        batch = rows.block(level, start, stop) if index is None else rows.batch(level, jnp.asarray(index[start:stop]))
        said = _said(on_batches(problem, **{level: batch}), solver, state, level == "upper")
        part = _tree.scale((stop - start) / count, said)
        total = part if total is None else _tree.axpy(1, part, total)
    return total


def _said(problem: Problem, solver: Linear, state: Any, upper: bool) -> PyTree:
    return (_upper_means if upper else _lower_means)(problem, solver, state)


@_compile.jit
def _lower_means(problem: Problem, solver: Linear, state: Any) -> PyTree:
    return solver.lower_means(problem, state)


@_compile.jit
def _upper_means(problem: Problem, solver: Linear, state: Any) -> PyTree:
    return solver.upper_means(problem, state)


def _certificate(
    problem: Problem, rows: Rows, solver: Linear, state: Any, parts: list[dict[Level, PyTree]], looked_at: int
) -> Certificate:
    said = [solver.judged(state, part["lower"], part["upper"]) for part in parts]
    slopes = [one.slope for one in said]
    mean = slopes[0]
    for slope in slopes[1:]:
        mean = _tree.axpy(1, slope, mean)
    mean = _tree.scale(1 / len(slopes), mean)
    gap, error = _tree.norm(mean), 0.0
    if len(slopes) > 1:
        spread = sum(float(_tree.norm(_tree.subtract(slope, mean))) ** 2 for slope in slopes)
        left = 1 - looked_at / max(len(getattr(rows, level)) for level in LEVELS)
        error = float(np.sqrt(left * spread / (len(slopes) * (len(slopes) - 1))))
    counts = _counts(rows, solver.calls, looked_at, len(parts))
    lower = jnp.mean(jnp.stack([one.lower_residual for one in said]))
    adjoint = [one.linear_residual for one in said if one.linear_residual is not None]
    linear = jnp.mean(jnp.stack(adjoint)) if adjoint else None
    unknown = jnp.full_like(gap, jnp.nan)
    stationarity = gap + jnp.asarray(_SIGMAS * error, gap.dtype)
    whole = 0 if len(parts) == 1 else looked_at
    return Certificate(stationarity, unknown, None, lower, linear, state.y, counts, rows=whole, standard_error=error)


def _counts(rows: Rows, calls: Counts, looked_at: int, groups: int) -> Counts:
    upper, lower = (min(looked_at, len(getattr(rows, level))) for level in LEVELS)
    lower_calls = calls.grad_lower + calls.hvp + calls.cross + calls.grad_lower_x
    named = {name: groups * count for name, count in calls.as_dict().items() if name != "rows"}
    return Counts(**named, rows=calls.grad_upper * upper + lower_calls * lower)
