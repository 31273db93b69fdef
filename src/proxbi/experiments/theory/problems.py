"""The problems that the theory is checked on, and how they are run."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from proxbi import analytic
from proxbi.analytic import Analytic
from proxbi.regularizers import L1
from proxbi.theory import Reference, Schedule, closed_forms

Form = Literal["paper", "sharper"]
FORMS: tuple[Form, ...] = ("paper", "sharper")
KAPPAS = (2.0, 10.0, 100.0, 1000.0)


class Kind(NamedTuple):
    """A problem at any kappa, and how many steps of it are checked."""

    name: str
    make: Callable[..., Analytic]
    steps: int = 400


def _convex_nonquadratic(kappa: float, seed: int) -> Analytic:
    return analytic.smooth_nonquadratic(kappa, seed=seed, regularizer=L1(0.05))


KINDS = (
    Kind("A: quadratic, l1", analytic.spectral_quadratic),
    Kind("B: sum |y|^4", analytic.kl_dial),
    Kind("C: sharp, |x|", analytic.sharp_minimum),
    Kind("C: sharp, |x|^1.5", partial(analytic.sharp_minimum, power=1.5)),
    Kind("D: not quadratic, nonconvex h", analytic.smooth_nonquadratic),
    Kind("D: not quadratic, l1", _convex_nonquadratic),
    Kind("E: ridge, box", analytic.ridge_hyperparameters, steps=40),  # the paper's T there is 74,855 for kappa = 1000
)


def schedule(made: Analytic, form: Form) -> Schedule:
    """The constants of a problem in one of the two forms."""
    return made.constants if form == "paper" else made.sharp


def reference(made: Analytic) -> Reference:
    """Its closed forms."""
    return closed_forms(made.solution, made.value, made.gradient)
