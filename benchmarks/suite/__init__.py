"""The problems that solvers are compared on: small, of every kind, and each with a way to *know* how stationary a point
is.

    >>> [name for name in SUITE if name.startswith("E")]
    ['E-100', 'E-1e4']
    >>> case = SUITE["E-100"]()
    >>> case.kind, case.kappa
    ('box', 100.0)
"""

from collections.abc import Callable

from proxbi import analytic
from proxbi.regularizers import L1, CappedL1, GroupL2
from suite import learning, planning, tables
from suite.case import Case, analytic_case
from suite.units import Stretched, Units, random_start, scaled

__all__ = ["SUITE", "Case", "Stretched", "Units", "random_start", "scaled"]

TWO_HALVES = [0] * 5 + [1] * 5
SUITE: dict[str, Callable[[], Case]] = {
    "A-2": lambda: analytic_case("l1", analytic.spectral_quadratic(2.0)),
    "A-100": lambda: analytic_case("l1", analytic.spectral_quadratic(100.0)),
    "A-1e3": lambda: analytic_case("l1", analytic.spectral_quadratic(1e3)),
    "A-1e5": lambda: analytic_case("l1", analytic.spectral_quadratic(1e5)),
    "A-10-capped": lambda: analytic_case("capped l1", analytic.spectral_quadratic(10.0), CappedL1(0.02, 0.5)),
    "A-30-group": lambda: analytic_case("group l2", analytic.spectral_quadratic(30.0), GroupL2(0.05, TWO_HALVES)),
    "B-10": lambda: analytic_case("none", analytic.kl_dial(10.0)),
    "C-10": lambda: analytic_case("l1", analytic.sharp_minimum(10.0)),
    "D-10": lambda: analytic_case("negative capped l1", analytic.smooth_nonquadratic(10.0)),
    "D-100-l1": lambda: analytic_case("l1", analytic.smooth_nonquadratic(100.0), L1(0.05)),
    "D-1e3-capped": lambda: analytic_case("capped l1", analytic.smooth_nonquadratic(1e3), CappedL1(0.05, 2.0)),
    "E-100": lambda: analytic_case("box", analytic.ridge_hyperparameters(100.0)),
    "E-1e4": lambda: analytic_case("box", analytic.ridge_hyperparameters(1e4)),
    "stiff-30": lambda: analytic_case("l1", analytic.stiff_quadratic(30.0)),
    "scalar": tables.scalar,
    "sources": tables.sources,
    "logistic": tables.logistic,
    "cleaning": tables.cleaning,
    "representation": learning.representation,
    "imaml": learning.imaml,
    "distillation": learning.distillation,
    "ard": learning.ard,
    "kernels": learning.kernels,
    "low-rank": learning.low_rank,
    "logistic-sources": learning.logistic_sources,
    "multinomial": learning.multinomial,
    "cleaning-capped": learning.capped_cleaning,
    "pricing": planning.pricing,
    "tolls": planning.tolls,
    "filters": planning.filters,
    "sensors": planning.sensors,
    "inverse-control": planning.inverse_control,
}
"""Every case by its name: the letters are those of `proxbi.analytic`, the numbers are kappa."""
