r"""Estimates of the gradient of Phi(x) = f(x, y*(x)).

By the implicit function theorem, with everything at (x, y*(x)),

    grad Phi = f_x - g_xy v,     g_yy v = f_y.                                                (the paper's (AID))

`AID` solves both equations approximately; `ITD` differentiates the steps that produced y instead.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from proxbi import _check, _tree
from proxbi._lower_level import first_probe, linearised, look, residual
from proxbi._module import Module
from proxbi._tree import Scalar
from proxbi.linear import CG, Direct, LinearInfo, LinearSolver, Neumann
from proxbi.lower import FixedLength, LowerSolver
from proxbi.problem import Counts, Problem


class HypergradientEstimate(eqx.Module):
    """An estimate of grad Phi(x), its cost, and the residuals of its two equations.

    Example: `AID`.
    """

    grad: PyTree
    """The estimate, a pytree like x."""
    y: PyTree
    """The lower solution at which it was evaluated: the next start."""
    aux: PyTree
    """The adjoint v (AID), the next start of the linear solve; None for ITD."""
    counts: Counts
    lower_residual: Scalar
    """|grad_y g(x, y)|."""
    linear: LinearInfo | None
    """The outcome of the adjoint solve; None for ITD, which has none."""

    @property
    def residuals(self) -> dict[str, Scalar]:
        """|grad_y g(x, y)| as "lower" and, with an adjoint solve, its relative residual as "linear"."""
        return {"lower": self.lower_residual} | ({} if self.linear is None else {"linear": self.linear.residual})


class Hypergradient(Module):
    """An estimator of grad Phi: `hg(problem, x, y, aux)` with `aux = hg.init(problem, x, y)` at the start.

    Example: `AID`. How to write one: docs/extending.md.
    """

    @abstractmethod
    def init(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        """The first `aux`."""

    @abstractmethod
    def __call__(self, problem: Problem, x: PyTree, y: PyTree, aux: PyTree) -> HypergradientEstimate:
        """The estimate at x. The lower solve starts at y, the adjoint solve at aux."""


class AID(Hypergradient):
    r"""Approximate implicit differentiation, the paper's equation (AID):

    $$\widehat\nabla\Phi(x) = \nabla_x f(x, y) - \nabla_x\nabla_y g(x, y)\,v, \qquad \nabla_y^2 g(x, y)\,v \approx
    \nabla_y f(x, y)$$

    **Arguments:**

    - `lower`: the solver for y.
    - `linear`: the solver for v; `CG()` by default.
    - `warm`: start the linear solve at the last v. From a cold start, a few CG steps converge to the wrong point. From
      a warm start, one step per outer iteration is often enough.

    Reference: F. Pedregosa, *Hyperparameter optimization with approximate gradient*, 2016.

    >>> import jax.numpy as jnp
    >>> from proxbi import GradientDescent
    >>> from proxbi.analytic import scalar_problem
    >>> problem, x, y = scalar_problem(), jnp.array(3.0), jnp.array(0.0)
    >>> hypergradient = AID(GradientDescent(0.5, steps=1), CG(steps=5))
    >>> float(hypergradient(problem, x, y, hypergradient.init(problem, x, y)).grad)
    1.0
    """

    lower: LowerSolver
    linear: LinearSolver = eqx.field(default_factory=CG)  # a plain CG() would start a JAX backend at import
    warm: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        _require_part("lower", self.lower, LowerSolver, "GradientDescent(0.1, steps=10)")
        _require_part("linear", self.linear, LinearSolver, "CG(steps=20)")

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        if problem.lower_regularizer is not None and isinstance(self.linear, Direct):
            raise TypeError(
                "Direct needs a Hessian that is positive definite everywhere, and with a lower_regularizer it is so on "
                "the active face only: use AID with CG(steps, tol)."
            )
        return _tree.zeros_like(y)

    def __call__(self, problem: Problem, x: PyTree, y: PyTree, aux: PyTree) -> HypergradientEstimate:
        y, counts = self.lower.solve(problem, x, y)
        y = jax.lax.stop_gradient(y)
        lower, _, cost = look(problem, x, y, first_probe(problem, y))
        here = linearised(problem, x, lower)
        _, (upper_x, upper_y) = here.upper()
        v, info = self.linear.solve(here.product, upper_y, aux if self.warm else None)
        grad = _tree.subtract(upper_x, here.cross(here.project(v)))
        counts = counts + cost + Counts(grad_upper=1, hvp=info.matvecs) + here.counts + here.made
        return HypergradientEstimate(grad, lower.y, v, counts, lower.residual, info)


class ITD(Hypergradient):
    r"""Iterative differentiation: the exact gradient of $x \mapsto f(x, y^T(x))$, by reverse mode through the lower
    steps.

    The backward pass through one step costs one Hessian-vector product and one cross product, so T steps cost T of
    each. The trajectory of y is kept in memory.

    **Arguments:**

    - `lower`: a solver of fixed length.
    - `truncate`: differentiate only the last so many steps (None: all of them). The start y is always a constant.

    Reference: L. Franceschi, M. Donini, P. Frasconi, M. Pontil, *Forward and reverse gradient-based hyperparameter
    optimization*, 2017.

    >>> import jax.numpy as jnp
    >>> from proxbi import GradientDescent
    >>> from proxbi.analytic import scalar_problem
    >>> hypergradient, x, y = ITD(GradientDescent(0.25, steps=3)), jnp.array(3.0), jnp.array(0.0)
    >>> float(hypergradient(scalar_problem(), x, y, None).grad)  # y3 = 7/8 x, so the gradient is 7/8 (y3 - 2)
    0.546875
    """

    lower: FixedLength
    truncate: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        given: Any = self.lower
        if isinstance(given, LowerSolver) and not isinstance(given, FixedLength):
            raise TypeError(
                f"lower must take a fixed number of steps to be unrolled, but {type(given).__name__} stops on a "
                "tolerance; use AID with it, or ITD with GradientDescent, Nesterov or Optax."
            )
        _require_part("lower", self.lower, FixedLength, "GradientDescent(0.1, steps=10)")
        if self.truncate is not None:
            _check.positive_int("truncate", self.truncate)
            if self.truncate > self.lower.steps:
                raise ValueError(
                    f"truncate must be at most the {self.lower.steps} steps of lower, got {self.truncate}."
                )

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        return None

    def __call__(self, problem: Problem, x: PyTree, y: PyTree, aux: PyTree) -> HypergradientEstimate:
        lower, steps = self.lower, self.lower.steps
        tail = steps if self.truncate is None else self.truncate
        carry = lower.advance(problem, x, lower.init(y), steps - tail) if tail < steps else lower.init(y)
        carry = jax.lax.stop_gradient(carry)
        y, pull_back = jax.vjp(lambda at: lower.answer(lower.advance(problem, at, carry, tail)), x)
        upper_x, upper_y = problem.grad_upper(x, y)
        grad = _tree.axpy(1, pull_back(upper_y)[0], upper_x)
        left, cost = residual(problem, x, y)
        counts = cost + lower.cost(problem) + Counts(grad_upper=1, hvp=tail, cross=tail)
        return HypergradientEstimate(grad, y, None, counts, left, None)


def one_step(lower: LowerSolver, step_size: float) -> AID:
    r"""One-step differentiation: the derivative of the single map $y \mapsto y - \alpha\nabla_y g(x, y)$ at the lower
    solution.

    Differentiating f(x, y - alpha g_y(x, y)) in x at fixed y gives $f_x - \alpha\,g_{xy} f_y$, up to the change of f_y:
    this is AID with the Neumann series of one term, v = alpha f_y. It is cheap, and accurate only as far as that step
    solves the lower problem; the residual in the estimate shows how far.

    Reference: J. Bolte, E. Pauwels, S. Vaiter, *One-step differentiation of iterative algorithms*, 2023.

    **Arguments:**

    - `lower`: the solver for y.
    - `step_size`: alpha.

    **Returns:** an `AID`.

    >>> from proxbi import Newton
    >>> hypergradient = one_step(Newton(), step_size=0.5)
    >>> float(hypergradient.linear.step_size), hypergradient.linear.steps
    (0.5, 1)
    """
    return AID(lower, Neumann(step_size, steps=1), warm=False)


def _require_part(name: str, part: Any, kind: type, example: str) -> None:
    if not isinstance(part, kind):
        raise TypeError(f"{name} must be a {kind.__name__} such as {example}, got {type(part).__name__}.")
