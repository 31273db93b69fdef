r"""The three ways to run the paper's experiment, each under its own name and never mixed.

`published`  what the authors' numbers measure: "momentum" is a doubled step, the prox moves half as far as the
paper's, CG starts at
             zero, ITD differentiates plain steps whatever steps were taken.
`paper`      the paper's equations: Algorithm 1 with Nesterov's momentum, the paper's prox, the paper's hyperparameters.
`tuned`      the same algorithm with step sizes that fit the problem, so that cleaning takes place.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from proxbi import _check, _tree
from proxbi.hypergradient import AID, ITD, Hypergradient, HypergradientEstimate
from proxbi.linear import CG
from proxbi.lower import GradientDescent, Nesterov
from proxbi.problem import Counts, Problem
from proxbi.solvers import ProxBiO, Solver

Kind = Literal["AID", "ITD"]
RIDGE, CAP = 1e-3, 20.0
TRUSTED_ROWS = 5000  # the upper level is a mean over so many rows, gamma's term included


class Cell(NamedTuple):
    """One cell of Table 1: a method, its regularization (None: not regularized) and the share of wrong labels."""

    method: str
    gamma: float | None
    p: float

    @property
    def kind(self) -> Kind:
        """How its hypergradient is computed."""
        return "AID" if "AID" in self.method else "ITD"

    @property
    def momentum(self) -> bool:
        """Whether it is one of the methods with an m."""
        return self.method.endswith("m")

    def __str__(self) -> str:
        return f"{self.row}@{self.p:g}"

    @property
    def row(self) -> str:
        """The name of its row in the table."""
        return self.method if self.gamma is None else f"{self.method}:{self.gamma:g}"


METHODS: tuple[tuple[str, float | None], ...] = tuple(
    (f"{prox}BiO-{kind}{m}", gamma)
    for kind in ("AID", "ITD")
    for prox, gammas in (("", (None,)), ("proximal ", (0.5, 5.0)))
    for m in ("", "m")
    for gamma in gammas
)
"""The twelve rows of Table 1: method and gamma."""
RATES = (0.1, 0.2, 0.4)
CELLS = tuple(Cell(method, gamma, p) for method, gamma in METHODS for p in RATES)


class Settings(NamedTuple):
    """The numbers in which the cells of one program differ; stacked, they are what `vmap` runs over."""

    alpha: Any
    eta: Any
    beta: Any
    strength: Any
    """Of the regularizer -strength min(|x|, 20) in each entry."""


class Protocol(NamedTuple):
    """How a cell is turned into a solver, and for how long it runs."""

    name: str
    steps: int
    inner_steps: int
    settings: Callable[[Cell, float, int], Settings]
    """From a cell, a bound on the lower level's curvature, and the number of training rows."""
    solver: Callable[[Kind, Settings], Solver]
    start_at_zero: bool = False
    """Whether W starts at 0, or at random and far too large as in the published runs."""


class UnrolledPlainSteps(Hypergradient):
    """The published ITD: reverse mode through the last `truncate` steps as if each had been a plain step of size
    `alpha`.

    `lower` may take other steps than that, and with "momentum" it does: then this is not the derivative of what was
    run.
    """

    lower: GradientDescent
    alpha: _check.Number = eqx.field(converter=_check.as_float)
    truncate: int = eqx.field(static=True)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> None:
        return None

    def __call__(self, problem: Problem, x: PyTree, y: PyTree, aux: None) -> HypergradientEstimate:
        y = self.lower.advance(problem, x, y, self.lower.steps - self.truncate)
        y, visited = jax.lax.scan(lambda at, _: (self.lower.step(problem, x, at), at), y, length=self.truncate)
        upper_x, upper_y = problem.grad_upper(x, y)

        def pull_back(carry: tuple[PyTree, PyTree], at: PyTree) -> tuple[tuple[PyTree, PyTree], None]:
            grad, w = carry
            grad = _tree.axpy(-self.alpha, problem.cross(x, at)(w), grad)
            return (grad, _tree.axpy(-self.alpha, problem.hvp(x, at)(w), w)), None

        (grad, _), _ = jax.lax.scan(pull_back, (upper_x, upper_y), visited, reverse=True)
        residual = _tree.norm(problem.grad_lower(x, y))
        counts = Counts(self.lower.steps + 1, 1, hvp=self.truncate, cross=self.truncate)
        return HypergradientEstimate(grad, y, None, counts, residual, None)


def _published_settings(cell: Cell, curvature: float, rows: int) -> Settings:
    alpha, eta, beta = 0.1, 1.0 if cell.momentum else 0.0, 0.5
    return Settings(alpha, eta, beta, 0.5 * (cell.gamma or 0.0) / TRUSTED_ROWS)


def _published_solver(kind: Kind, settings: Settings) -> Solver:
    lower = GradientDescent((1 + settings.eta) * settings.alpha, steps=5)
    hypergradient: Hypergradient = (
        AID(lower, CG(steps=200, tol=0.0), warm=False)
        if kind == "AID"
        else UnrolledPlainSteps(lower, settings.alpha, truncate=3)
    )
    return ProxBiO(hypergradient, settings.beta)


def _paper_settings(cell: Cell, curvature: float, rows: int) -> Settings:
    return Settings(0.1, 1.0 if cell.momentum else 0.0, 0.5, (cell.gamma or 0.0) / TRUSTED_ROWS)


def _nesterov_solver(inner_steps: int, cg_steps: int) -> Callable[[Kind, Settings], Solver]:
    def solver(kind: Kind, settings: Settings) -> Solver:
        lower = Nesterov(settings.alpha, settings.eta, inner_steps)  # eta = 0 is plain gradient descent
        hypergradient: Hypergradient = AID(lower, CG(cg_steps, tol=1e-6)) if kind == "AID" else ITD(lower)
        return ProxBiO(hypergradient, settings.beta)

    return solver


def _tuned_settings(cell: Cell, curvature: float, rows: int) -> Settings:
    root = (curvature / (2 * RIDGE)) ** 0.5
    eta = (root - 1) / (root + 1) if cell.momentum else 0.0
    # The gradient in one of n weights is of order 1/n: the step has to be of order n to move it, and h is scaled alike.
    return Settings(1 / curvature, eta, float(rows), 2e-3 * (cell.gamma or 0.0) / rows)


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("published", 50, 5, _published_settings, _published_solver),
        Protocol("paper", 50, 5, _paper_settings, _nesterov_solver(5, cg_steps=200)),
        Protocol("tuned", 200, 10, _tuned_settings, _nesterov_solver(10, cg_steps=5), start_at_zero=True),
    )
}


def stack(settings: list[Settings]) -> Settings:
    """Settings of many cells as one, with an array for each number."""
    return Settings(*(jnp.asarray(values, jnp.float32) for values in zip(*settings, strict=True)))


def choose(rows: str, rates: str, cells: str, quick: bool) -> list[Cell]:
    """The cells of these rows and shares of noise, or those named; everything is all 36."""
    if cells:
        return [_named("cells", name, {str(cell): cell for cell in CELLS}) for name in _split(cells)]
    chosen = [cell for cell in CELLS if not quick or (cell.p == 0.1 and (cell.kind == "ITD" or cell.row == "BiO-AID"))]
    if rows:
        named = {_named("rows", name, {cell.row: cell.row for cell in CELLS}) for name in _split(rows)}
        chosen = [cell for cell in chosen if cell.row in named]
    if rates:
        wanted = {_named("p", rate, {f"{p:g}": p for p in RATES}) for rate in _split(rates)}
        chosen = [cell for cell in chosen if cell.p in wanted]
    if not chosen:
        raise ValueError("rows, p and quick leave no cell to run.")
    return chosen


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _named(argument: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ValueError(f"{argument}: there is no {name!r}; there is {', '.join(known)}.")
    return known[name]
