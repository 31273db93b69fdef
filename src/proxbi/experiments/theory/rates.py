"""Theorem 2: the KL exponent dialled from 1/6 to 1/2 (problem B) and beyond (problem C), and the slopes."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from proxbi import analytic
from proxbi.experiments.theory.problems import reference
from proxbi.theory import Plugged, algorithm_1, record
from proxbi.theory.rates import geometric_slope, orders, power_slope, predicted_order, predicted_slope

Row = dict[str, Any]
EXPONENTS = (6.0, 4.0, 3.0, 2.0)


def dial(kappa: float, steps: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Phi = sum |x_i|^q / q has theta = 1/q: slopes of H_k, fitted and predicted, for four q; and the series.

    For q = 2, where Theorem 2 only says "linear", the rate is known: Phi = |x|^2 / 2 falls by (1 - beta)^2 a step.
    """
    table, series = [], []
    for q in EXPONENTS:
        made = analytic.kl_dial(kappa, q, seed=seed)
        beta, start = made.sharp.beta, jnp.full_like(made.x0, 0.9)
        trace = record(made.problem, algorithm_1(made.sharp), reference(made), start, made.y0, steps)
        gap = trace.potential(made.sharp.weight)
        if q > 2:
            kind, fitted, predicted = "log H against log k", power_slope(gap), predicted_slope(1 / q)
        else:
            kind, fitted, predicted = "log H against k", geometric_slope(gap)[0], 2 * math.log1p(-beta)
        table.append(
            {
                "q": q,
                "theta": 1 / q,
                "kappa": kappa,
                "steps": steps,
                "slope of": kind,
                "predicted": predicted,
                "fitted": fitted,
                "deviation": fitted / predicted - 1,
                "holds": abs(fitted / predicted - 1) <= 0.03,
            }
        )
        shown = np.unique(np.geomspace(1, steps, 100).astype(int)) if q > 2 else np.arange(1, 151)
        series += [{"q": q, "step": int(k), "gap": float(gap[k - 1]), "fitted": fitted} for k in shown]
    return table, series


def beyond(seed: int, steps: int = 30) -> tuple[list[Row], list[Row]]:
    """theta = 2/3 and theta = 1, with the lower problem solved exactly and not: digits that multiply, or not.

    Theorem 2 guarantees order 1 / (2 (1 - theta)) at least, 3/2 for theta = 2/3, if H has that exponent. Phi + h has
    it; H is quadratic in the lower error, and has it only where that is zero. For theta = 1 the steps are finitely
    many.
    """
    table, series = [], []
    for power, theta in ((1.5, 2 / 3), (1.0, 1.0)):
        for kappa, exact in ((1.0, False), (10.0, True), (10.0, False)):
            made = analytic.sharp_minimum(kappa, power, seed=seed)
            solver = algorithm_1(made.sharp, lower=Plugged(made.solution) if exact else None)
            trace = record(made.problem, solver, reference(made), made.x0, made.y0, steps)
            gap = np.maximum(trace.potential(made.sharp.weight) - made.floor, 0)
            gap = np.where(gap < 1e-15 * made.floor, 0, gap)  # H - H* cannot be distinguished from 0 where H* is not 0
            solve = "one step is exact" if kappa == 1 else "y* plugged in" if exact else f"T = {made.sharp.T} steps"
            is_exact = exact or kappa == 1
            order = float(np.median(orders(gap, 1e-60)[-3:])) if power == 1.5 else math.nan
            identified = int(np.argmax(gap == 0)) if (gap == 0).any() else None
            after = gap[7:][gap[7:] > 0]
            rate = float(np.exp(geometric_slope(after, 1e-300)[0])) if len(after) > 3 and not is_exact else math.nan
            fast = order >= 0.95 * predicted_order(theta) if power == 1.5 else (identified or steps) <= 6
            row = {"h": f"|x|^{power:g}", "theta": theta, "kappa": kappa, "lower solve": solve}
            row |= {"order": order, "steps to H = H*": identified, "linear rate": rate, "exact": is_exact}
            table.append(row | {"superlinear": bool(fast), "holds": bool(fast) == is_exact})
            series += [{"h": row["h"], "kappa": kappa, "lower solve": solve, "step": k, "gap": float(g)}
                       for k, g in enumerate(gap)]  # fmt: skip
    return table, series
