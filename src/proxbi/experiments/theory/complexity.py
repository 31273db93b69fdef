r"""How the work to |G(x)| <= eps grows with kappa, for plain and accelerated lower loops.

The problem, `analytic.stiff_quadratic`: Phi = |A^-1 x - a|^2 / 2 with curvatures from 1 to kappa^2. It is as hard as
quadratic problems get: L_Phi = kappa^2 = C ell, so beta must be of order kappa^-2, and the directions of curvature 1
then take of order kappa^2 steps. With T of order kappa (plain) or sqrt(kappa) ln kappa (accelerated) that is kappa^3
and kappa^2.5 ln kappa lower steps in all.

The paper's kappa^4 and kappa^3.5 are one power higher, from beta = O(kappa^-3): that is L_Phi = O(kappa^3), which
takes a g_yy that varies (rho > 0), and in the lumped constants Gamma = O(kappa^3) even where it does not. As beta
tends to 0 the iterates follow the gradient flow of Phi + h, and the steps to eps are (flow time) / beta: so the flow
time measured here and the paper's T and beta give the work that the paper's own parameters would take. At small kappa
this is also run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi import _tree
from proxbi.analytic import Analytic, stiff_quadratic
from proxbi.linear import CG
from proxbi.problem import Counts
from proxbi.solvers.prox_bio import ProxBiO
from proxbi.theory import Schedule, algorithm_1
from proxbi.theory.rates import exponent

Row = dict[str, Any]
ACCURACY = 0.7
"""eps; every entry of the gradient is 1 in magnitude at the start."""
LIMIT = 10_000_000
INNER = {"accelerated": True, "plain": False}
PAPER = {"accelerated": 3.5, "plain": 4.0}
HERE = {"accelerated": 2.5, "plain": 3.0}


def complexity(kappas: Sequence[float], tick: Callable[[], None]) -> list[Row]:
    """One row for each kappa and lower loop: steps, lower steps and oracle calls to |G| <= eps, and the flow time."""
    rows = []
    for kappa in kappas:
        made = stiff_quadratic(kappa)
        for inner, momentum in INNER.items():
            T, paper_T = (_T(constants, momentum) for constants in (made.sharp, made.constants))
            steps, calls = _count(made, made.sharp, momentum)
            time = steps * made.sharp.beta
            row = {"kappa": kappa, "lower loop": inner, "T": T, "beta": made.sharp.beta, "steps": steps}
            row |= {"lower steps": steps * T, "all calls": calls, "flow time": time}
            implied = time / made.constants.beta * paper_T
            rows.append(
                row | {"paper's T": paper_T, "paper's beta": made.constants.beta, "implied lower steps": implied}
            )
            tick()
    return rows


def paper_runs(rows: list[Row], kappas: Sequence[float]) -> list[Row]:
    """The paper's own T and beta, run: lower steps beside those implied by the flow time."""
    found = []
    for row in rows:
        if row["kappa"] in kappas:
            made = stiff_quadratic(row["kappa"])
            steps, _ = _count(made, made.constants, INNER[row["lower loop"]])
            run, implied = steps * row["paper's T"], row["implied lower steps"]
            head = {"kappa": row["kappa"], "lower loop": row["lower loop"]}
            found.append(head | {"run": run, "implied": implied, "deviation": implied / run - 1})
    return found


def exponents(rows: list[Row]) -> list[Row]:
    """Fitted exponents of kappa, as they are and with the factor ln(8 (1 + kappa)) of the accelerated T taken out."""
    table = []
    for quantity, theory in (("lower steps", HERE), ("all calls", HERE), ("implied lower steps", PAPER)):
        for inner in INNER:
            kappas, work = _series(rows, inner, quantity)
            row = {"quantity": quantity, "lower loop": inner, "exponent": exponent(kappas, work)}
            logarithm = np.log(8 * (1 + kappas)) if inner == "accelerated" else 1.0
            table.append(row | {"without ln": exponent(kappas, work / logarithm), "theory": theory[inner]})
    kappas, fast = _series(rows, "accelerated", "lower steps")
    ratio = fast / _series(rows, "plain", "lower steps")[1]
    row = {"quantity": "lower steps", "lower loop": "accelerated / plain", "exponent": exponent(kappas, ratio)}
    return [*table, row | {"without ln": exponent(kappas, ratio / np.log(8 * (1 + kappas))), "theory": -0.5}]


def _series(rows: list[Row], inner: str, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    chosen = [row for row in rows if row["lower loop"] == inner]
    return np.array([row["kappa"] for row in chosen]), np.array([float(row[quantity]) for row in chosen])


def _T(constants: Schedule, momentum: bool) -> int:
    return constants.T if momentum else constants.T_plain


def _count(made: Analytic, constants: Schedule, momentum: bool) -> tuple[int, int]:
    solver = algorithm_1(constants, momentum=momentum, linear=CG(100, 1e-10))
    steps, calls, size = _until(made.problem, solver, made.gradient, made.x0, made.y0)
    if not size <= ACCURACY:
        raise RuntimeError(f"|G| is still {float(size):.2g} after {int(steps)} steps at kappa = {made.kappa:g}.")
    return int(steps), int(calls)


@eqx.filter_jit
def _until(problem: Any, solver: ProxBiO, gradient: Any, x0: Array, y0: Array) -> tuple[Array, Array, Array]:
    """Steps and oracle calls until |G(x)| <= eps, G with the true gradient (which is not counted)."""
    beta, h = solver.step_size, problem.regularizer

    def mapping(x: Array) -> Array:
        return _tree.norm(x - h.prox(x - beta * gradient(x), beta)) / beta

    def step(at: tuple[Any, Array, Array, Array]) -> tuple[Any, Array, Array, Array]:
        state, steps, calls, _ = at
        state, info = solver.step(problem, state, jax.random.key(0))
        counts: Counts = info.counts
        return state, steps + 1, calls + jnp.asarray(counts.total, jnp.int64), mapping(state.x)

    start = (solver.init(problem, x0, y0), jnp.int32(0), jnp.int64(0), mapping(x0))
    return jax.lax.while_loop(lambda at: (at[3] > ACCURACY) & (at[1] < LIMIT), step, start)[1:]
