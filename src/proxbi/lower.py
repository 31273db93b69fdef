"""Lower solvers: y close to argmin_y g(x, y), started at the y given."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import optax
import optimistix
from jaxtyping import PyTree

from proxbi import _check, _tree
from proxbi._module import Module
from proxbi.linear import Direct, LinearStatus
from proxbi.problem import Counts, Problem, differentiable_grad_lower


class LowerSolver(Module):
    """Anything with `solve(problem, x, y)`: the answer and the oracles it took."""

    @abstractmethod
    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """y close to argmin g(x, .), from the start `y`."""


class FixedLength(LowerSolver):
    """A lower solver that takes `steps` gradient steps, whatever happens: the kind that ITD can differentiate.

    A new one writes `init`, `step` and `answer`; each step calls `differentiable_grad_lower` once.
    """

    if TYPE_CHECKING:  # mypy would put an abstract field first in the constructors of subclasses

        @property
        def steps(self) -> int:
            """How many; a static field in subclasses."""
    else:
        steps: eqx.AbstractVar[int]

    @abstractmethod
    def init(self, y: PyTree) -> PyTree:
        """What the first step needs, from the start `y`."""

    @abstractmethod
    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        """One step."""

    @abstractmethod
    def answer(self, carry: PyTree) -> PyTree:
        """The y in the carry."""

    def advance(self, problem: Problem, x: PyTree, carry: PyTree, steps: int) -> PyTree:
        """`steps` steps from `carry`."""
        return jax.lax.scan(lambda c, _: (self.step(problem, x, c), None), carry, length=steps)[0]

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """`steps` steps from `y`."""
        carry = self.advance(problem, x, self.init(y), self.steps)
        return self.answer(carry), Counts(grad_lower=self.steps)


class GradientDescent(FixedLength):
    r"""Plain gradient descent, $y^t = y^{t-1} - \alpha\nabla_y g(x, y^{t-1})$: `steps` steps of size `step_size`.

    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = GradientDescent(0.25, steps=3).solve(scalar_problem(), x=jnp.array(1.0), y=jnp.array(0.0))
    >>> float(y), counts.grad_lower
    (0.875, 3)
    """

    step_size: _check.Number = eqx.field(converter=_check.as_float)
    steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check.positive("step_size", self.step_size)
        _check.positive_int("steps", self.steps)

    def init(self, y: PyTree) -> PyTree:
        return y

    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        return _tree.axpy(-self.step_size, differentiable_grad_lower(problem, x, carry), carry)

    def answer(self, carry: PyTree) -> PyTree:
        return carry


class Nesterov(FixedLength):
    r"""Nesterov's accelerated gradient descent, lines 3 to 7 of the paper's Algorithm 1:

    $$u_t = y^{t-1} - \alpha\nabla_y g(x, y^{t-1}), \qquad y^t = u_t + \eta\,(u_t - u_{t-1}), \qquad u_0 = y^0 .$$

    **Arguments:**

    - `step_size`: alpha; the theory takes 1 / L.
    - `momentum`: eta; the theory takes (sqrt(kappa) - 1) / (sqrt(kappa) + 1) < 1.
    - `steps`: T.
    - `form`: `"algorithm"` extrapolates already in the first step, as Algorithm 1 is written; `"appendix"` starts with
      the plain
      step y^1 = u_1 that the proofs use (equation (y1_def) there). Later steps are the same.
    """

    step_size: _check.Number = eqx.field(converter=_check.as_float)
    momentum: _check.Number = eqx.field(converter=_check.as_float)
    steps: int = eqx.field(static=True)
    form: Literal["algorithm", "appendix"] = eqx.field(static=True, default="algorithm")

    def __check_init__(self) -> None:
        _check.positive("step_size", self.step_size)
        _check.non_negative("momentum", self.momentum)
        _check.positive_int("steps", self.steps)
        if self.form not in ("algorithm", "appendix"):
            raise ValueError(f'form must be "algorithm" or "appendix", got {self.form!r}.')

    def init(self, y: PyTree) -> PyTree:
        plain_first_step = jnp.asarray(self.form == "appendix")
        return y, y, plain_first_step

    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        y, previous, plain = carry
        u = _tree.axpy(-self.step_size, differentiable_grad_lower(problem, x, y), y)
        momentum = jnp.where(plain, 0, self.momentum)
        return _tree.axpy(momentum, _tree.subtract(u, previous), u), u, jnp.asarray(False)

    def answer(self, carry: PyTree) -> PyTree:
        return carry[0]


class Optax(FixedLength):
    """Any first-order optax optimizer for `steps` steps, started afresh at every solve.

    The numbers inside an optax optimizer are constants of the compiled program: changing one compiles again.
    """

    optimizer: optax.GradientTransformation = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(f"optimizer must be an optax GradientTransformation, got {type(self.optimizer).__name__}.")
        _check.positive_int("steps", self.steps)

    def init(self, y: PyTree) -> PyTree:
        return y, self.optimizer.init(y)

    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        y, state = carry
        updates, state = self.optimizer.update(differentiable_grad_lower(problem, x, y), state, y)
        return optax.apply_updates(y, updates), state

    def answer(self, carry: PyTree) -> PyTree:
        return carry[0]


class Exact(LowerSolver):
    """Solve grad_y g(x, y) = 0 to near machine precision by optimistix' dogleg method: a reference for small problems.

    It materialises the Hessian, so a solve costs about dim(y) Hessian-vector products a step; the counts say so. Where
    `tol` (or the rounding level of y's dtype, if that is larger) is not reached in `max_steps` steps the result is NaN:
    a reference is exact or nothing.
    """

    tol: float = eqx.field(static=True, default=1e-12)
    max_steps: int = eqx.field(static=True, default=200)

    def __check_init__(self) -> None:
        _check.positive("tol", _check.as_float(self.tol))
        _check.positive_int("max_steps", self.max_steps)

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """The y with |grad_y g(x, y)| at rounding level."""
        tol = max(self.tol, *(8 * float(jnp.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(y)))
        solver: Any = optimistix.Dogleg(rtol=tol, atol=tol, linear_solver=lineax.QR())
        # optimistix wants its iterate in JAX's default precision, whatever the dtype of y is.
        wide = jax.tree.map(lambda leaf: leaf.astype(float), y)

        def gradient(at: PyTree, _: Any) -> PyTree:
            at = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), at, y)
            return jax.tree.map(lambda leaf: leaf.astype(float), problem.grad_lower(x, at))

        found: Any = optimistix.root_find(gradient, solver, wide, max_steps=self.max_steps, throw=False)
        y = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), found.value, y)
        # optimistix' own test compares steps, which at rounding level may go on for ever. The Newton correction is the
        # distance to the solution up to second order: it decides, and is applied.
        correction, info = Direct().solve(problem.hvp(x, y), problem.grad_lower(x, y))
        small = _tree.norm(correction) <= 100 * tol * (1 + _tree.norm(y))
        solved = small & (info.status == int(LinearStatus.OK))
        answer = _tree.where(solved, _tree.axpy(-1, correction, y), jax.tree.map(lambda leaf: leaf * jnp.nan, y))
        size = sum(leaf.size for leaf in jax.tree.leaves(y))
        taken = found.stats["num_steps"]
        counts = Counts(grad_lower=taken + 1, hvp=size * taken + info.matvecs)
        return answer, counts
