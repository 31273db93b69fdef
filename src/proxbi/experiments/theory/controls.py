"""Negative controls: each breaks one condition of the theory, and the check that rests on it must fail."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxbi import analytic
from proxbi.analytic import Analytic
from proxbi.experiments.theory.problems import reference
from proxbi.linear import CG
from proxbi.regularizers import NegativeCappedL1
from proxbi.theory import Check, Trace, algorithm_1, audit, record

Row = dict[str, Any]


class FreezesAtZero(NegativeCappedL1):
    """-strength min(|x|, cap) with a wrong prox: the usual sign, which is 0 at 0, leaves x = 0 where it is."""

    convex: ClassVar[bool] = False

    def _prox(self, x: Array, step: Array) -> Array:
        magnitude = jnp.abs(x)
        return jnp.sign(x) * jnp.maximum(magnitude, jnp.minimum(magnitude + step * self.strength, self.cap))


def controls(seed: int) -> list[Row]:
    """All of them; `fails` must be True in every row but those of what they are compared with."""
    return [*too_few_lower_steps(seed), *too_long_steps(seed), *cold_adjoint(seed), *sign_of_zero(seed)]


def _row(control: str, setting: str, check: str, measured: float, allowed: float, must_fail: bool = True) -> Row:
    fails = not measured <= allowed
    head = {"control": control, "setting": setting, "check": check, "measured": measured, "allowed": allowed}
    return head | {"must fail": must_fail, "fails": fails, "as it must": fails == must_fail}


def _run(made: Analytic, steps: int, **changes: Any) -> Trace:
    return record(made.problem, algorithm_1(made.sharp, **changes), reference(made), made.x0, made.y0, steps)


def _proposition(trace: Trace, made: Analytic, beta: float | None = None) -> float:
    checks: list[Check] = audit(trace, made.sharp, made.floor, beta=beta)
    return next(check.ratio for check in checks if check.name == "Proposition 1")


def too_few_lower_steps(seed: int) -> list[Row]:
    """T = 1 instead of the T of Proposition 1."""
    rows = []
    for kappa in (20.0, 100.0, 1000.0):
        made = analytic.spectral_quadratic(kappa, seed=seed)
        for T in (1, made.sharp.T):
            ratio = _proposition(_run(made, 400, T=T), made)
            setting = f"A, kappa = {kappa:g}, T = {T}"
            rows.append(_row("too few lower steps", setting, "Proposition 1, asked / seen", ratio, 1.0, T == 1))
    return rows


def too_long_steps(seed: int) -> list[Row]:
    """An outer step above 2 / L_Phi, with the true L_Phi; and a fine one that is longer than the theory allows."""
    made = analytic.spectral_quadratic(10.0, seed=seed)
    rows = []
    for factor in (2.2, 0.5):
        beta = factor / made.sharp.L_Phi
        ratio = _proposition(_run(made, 400, beta=beta), made, beta)
        setting = f"A, kappa = 10, beta = {factor:g} / L_Phi"
        rows.append(_row("too long outer steps", setting, "Proposition 1, asked / seen", ratio, 1.0, factor > 2))
    return rows


def cold_adjoint(seed: int) -> list[Row]:
    """Two CG steps from zero for the adjoint: x converges, but not to a critical point. From the last v it does."""
    made = analytic.spectral_quadratic(50.0, seed=seed)
    rows = []
    for warm in (False, True):
        trace = _run(made, 50_000, linear=CG(2, 1e-12), warm=warm)
        setting = f"A, kappa = 50, {'warm' if warm else 'cold'} CG of 2 steps"
        gap = float(trace.mapping[-1] / trace.mapping[0])
        rows.append(_row("cold truncated adjoint", setting, "|G| after 50,000 steps / first", gap, 1e-2, not warm))
    return rows


def sign_of_zero(seed: int) -> list[Row]:
    """A prox that keeps 0, where it should leave: the run stays at a local maximum of Phi + h."""
    made = analytic.kl_dial(2.0, 2.0, seed=seed)
    made = made._replace(x0=jnp.zeros_like(made.x0))
    least = -len(made.x0) * 0.5**2 / 2  # of x^2/2 - 0.5 |x|, at x = +-0.5
    rows = []
    for h in (FreezesAtZero(0.5, 2.0), NegativeCappedL1(0.5, 2.0)):
        problem = eqx.tree_at(lambda p: p.regularizer, made.problem, h)
        value = _run(made._replace(problem=problem), 200).value
        wrong = isinstance(h, FreezesAtZero)
        setting = f"B, q = 2, x0 = 0, sign(0) = {'0' if wrong else '+1'}"
        rows.append(
            _row("sign(0) in the prox", setting, "Phi + h after 200 steps - least", value[-1] - least, 1e-6, wrong)
        )
    return [{key: float(v) if isinstance(v, np.floating) else v for key, v in row.items()} for row in rows]
