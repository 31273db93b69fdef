"""Proposition 1 term by term, Theorem 1 and Corollary 1, on every analytic problem at every kappa."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi import analytic
from proxbi.analytic import Analytic
from proxbi.experiments.theory.problems import FORMS, KINDS, reference, schedule
from proxbi.theory import algorithm_1, audit, proposition_1, record

Row = dict[str, Any]


def inequalities(kappas: Sequence[float], seed: int, tick: Callable[[], None]) -> list[Row]:
    """One row for each problem, kappa, form of the constants and inequality: how close it comes, and whether it
    holds.
    """
    rows = []
    for kind in KINDS:
        for kappa in kappas:
            made = kind.make(kappa, seed=seed)
            for form in FORMS:
                constants = schedule(made, form)
                solver = algorithm_1(constants)
                trace = record(made.problem, solver, reference(made), made.x0, made.y0, kind.steps)
                convex = made.problem.regularizer.convex
                head = {"problem": kind.name, "kappa": kappa, "form": form, "T": constants.T, "beta": constants.beta}
                checks = audit(trace, constants, made.floor, region=made.region, convex=convex)
                rows += [head | {"steps": kind.steps} | check._asdict() for check in checks]
            tick()
    return rows


def potentials(kappas: Sequence[float], seed: int, steps: int) -> list[Row]:
    """H_k - min(Phi + h) on problem A, step by step at steps spaced geometrically, with what Proposition 1 asks for."""
    rows = []
    for kappa in kappas:
        made = analytic.spectral_quadratic(kappa, seed=seed)
        least = minimum(made)
        for form in FORMS:
            constants = schedule(made, form)
            trace = record(made.problem, algorithm_1(constants), reference(made), made.x0, made.y0, steps)
            decrease, required = proposition_1(trace, constants)
            potential = trace.potential(constants.weight)
            for k in np.unique(np.geomspace(1, steps, 120).astype(int)) - 1:
                numbers = {"gap": potential[k] - least, "decrease": decrease[k], "required": required[k]}
                head = {"problem": "A: quadratic, l1", "kappa": kappa, "form": form, "step": int(k)}
                rows.append(head | {name: float(value) for name, value in numbers.items()})
    return rows


def minimum(made: Analytic, steps: int = 50_000) -> float:
    """min(Phi + h) by accelerated prox-gradient steps with the closed-form gradient; for convex Phi + h."""
    return float(_minimum(made.problem.regularizer, (made.value, made.gradient), made.x0, 1 / made.sharp.L_Phi, steps))


@eqx.filter_jit
def _minimum(h: Any, closed: tuple[Any, Any], x0: Array, step: float, steps: int) -> Array:
    value, gradient = closed

    def move(_: int, at: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, z, t, least = at
        following = h.prox(z - step * gradient(z), step)
        restart = jnp.vdot(z - following, following - x) > 0
        t_next = jnp.where(restart, 1.0, (1 + jnp.sqrt(1 + 4 * t**2)) / 2)
        z = jnp.where(restart, following, following + (t - 1) / t_next * (following - x))
        return following, z, t_next, jnp.minimum(least, value(following) + h.value(following))

    start = (x0, x0, jnp.asarray(1.0), value(x0) + h.value(x0))
    return jax.lax.fori_loop(0, steps, move, start)[3]


LIMITS: dict[str, Callable[..., Analytic]] = {
    "A: quadratic, l1": analytic.spectral_quadratic,
    "B: sum |y|^4": analytic.kl_dial,
    "C: sharp, |x|": analytic.sharp_minimum,
    "D: not quadratic, nonconvex h": analytic.smooth_nonquadratic,
}


def limits(kappas: Sequence[float], seed: int, steps: int) -> list[Row]:
    """Theorem 1, item by item, at the end of long runs with the sharper constants."""
    rows = []
    for name, make in LIMITS.items():
        for kappa in kappas:
            made = make(kappa, seed=seed)
            constants = made.sharp
            trace = record(made.problem, algorithm_1(constants), reference(made), made.x0, made.y0, steps)
            potential, half = trace.potential(constants.weight), steps // 2
            row = {
                "problem": name,
                "kappa": kappa,
                "steps": steps,
                "1: |dx| / first": trace.moved[-1] / trace.moved[0],
                "1: |y - y*| / first": trace.error[-1] / trace.error[0],
                "2: H - (Phi + h)": potential[-1] - trace.value[-1],
                "2: change over the last half": abs(trace.value[-1] - trace.value[half]),
                "3: largest entry": np.max(trace.extent),
                "4: distance / first": trace.distance[-1] / trace.distance[1],
            }
            small = [
                row["1: |dx| / first"],
                row["1: |y - y*| / first"],
                row["2: H - (Phi + h)"],
                row["4: distance / first"],
            ]
            row["holds"] = bool(max(small) < 1e-2 and np.isfinite(row["3: largest entry"]))
            rows.append({key: float(value) if isinstance(value, np.floating) else value for key, value in row.items()})
    return rows
