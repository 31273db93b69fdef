r"""The potential of Proposition 1, recorded along a run.

    H(x, y') = Phi(x) + h(x) + 7/8 w |y^T(x, y') - y*(x)|^2

Its second argument is the *warm start*: H(x_k, y_k) is evaluated with y_{k+1} = y^T(x_k, y_k), the y at the end of step
k, and not with T more steps from there.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from proxbi import _tree
from proxbi.hypergradient import AID
from proxbi.linear import Direct, LinearSolver
from proxbi.lower import GradientDescent, LowerSolver, Nesterov
from proxbi.problem import Problem
from proxbi.solvers.prox_bio import ProxBiO, ProxBiOState
from proxbi.theory.constants import Schedule
from proxbi.theory.reference import Reference, Repeated


def algorithm_1(
    schedule: Schedule,
    *,
    T: int | None = None,
    beta: float | None = None,
    momentum: bool = True,
    lower: LowerSolver | None = None,
    linear: LinearSolver | None = None,
    warm: bool = True,
) -> ProxBiO:
    """The paper's Algorithm 1 with the step sizes of `schedule`, an exact adjoint solve, and the changes
    given.

    **Arguments:**

    - `schedule`: `Constants` or `SharpConstants`.
    - `T`, `beta`: instead of those of the schedule.
    - `momentum`: False for gradient descent without momentum in the lower loop, with the T that it needs.
    - `lower`: another lower solver.
    - `linear`, `warm`: the adjoint solve; the theory assumes it exact, which `Direct()` is.

    Example: `audit`.
    """
    alpha = schedule.alpha
    base = Nesterov(alpha, schedule.eta, steps=1) if momentum else GradientDescent(alpha, steps=1)
    lower = lower or Repeated(base, T or (schedule.T if momentum else schedule.T_plain))
    return ProxBiO(AID(lower, Direct() if linear is None else linear, warm), schedule.beta if beta is None else beta)


class Trace(NamedTuple):
    """The quantities of a run of K + 1 steps that the checks need: arrays over k = 0, ..., K, all at x_k.

    Example: `audit`.
    """

    phi: Float[np.ndarray, " steps"]
    """Phi(x_k)."""
    h: Float[np.ndarray, " steps"]
    """h(x_k)."""
    error: Float[np.ndarray, " steps"]
    """e_k = |y_{k+1} - y*(x_k)|."""
    warm: Float[np.ndarray, " steps"]
    """|y_k - y*(x_k)|, before the T lower steps."""
    moved: Float[np.ndarray, " steps"]
    """dx_k = |x_{k+1} - x_k|."""
    gradient: Float[np.ndarray, " steps"]
    """|grad Phi(x_k)|."""
    gradient_error: Float[np.ndarray, " steps"]
    """|d_k - grad Phi(x_k)|, with d_k the estimate used in step k."""
    mapping: Float[np.ndarray, " steps"]
    """|G(x_k)|, the prox-gradient mapping with the true gradient."""
    distance: Float[np.ndarray, " steps"]
    """|(x_{k-1} - x_k)/beta - d_{k-1} + grad Phi(x_k)| >= dist(0, d(Phi + h)(x_k)), for any h; 0 for k = 0."""
    gradient_moved: Float[np.ndarray, " steps"]
    """|grad Phi(x_k) - grad Phi(x_{k-1})|; 0 for k = 0."""
    solution_moved: Float[np.ndarray, " steps"]
    """|y*(x_k) - y*(x_{k-1})|; 0 for k = 0."""
    extent: Float[np.ndarray, " steps"]
    """The largest entry of y_{k+1}, and of x_k."""

    @property
    def value(self) -> Float[np.ndarray, " steps"]:
        """F(x_k) = Phi + h."""
        return self.phi + self.h

    def potential(self, weight: float = 1.0) -> Float[np.ndarray, " steps"]:
        """H(x_k, y_k) = F(x_k) + 7/8 weight e_k^2."""
        return self.value + 7 / 8 * weight * self.error**2


def record(problem: Problem, solver: ProxBiO, reference: Reference, x0: PyTree, y0: PyTree, steps: int) -> Trace:
    """Run `steps` + 1 steps of `solver`, which must use AID, and record the quantities of the theory.

    **Arguments:**

    - `problem`: the problem.
    - `solver`: the method, as `algorithm_1` makes it.
    - `reference`: y*, Phi and grad Phi, from `closed_forms` or `computed`.
    - `x0`, `y0`: the start.
    - `steps`: K.

    **Returns:** a `Trace`. Example: `audit`.
    """
    traced = _record(problem, solver, reference, x0, y0, steps + 1)
    return Trace(**{name: np.asarray(series) for name, series in traced.items()})


class _Carry(NamedTuple):
    state: ProxBiOState
    solution: PyTree
    gradient: PyTree


@eqx.filter_jit
def _record(
    problem: Problem, solver: ProxBiO, reference: Reference, x0: PyTree, y0: PyTree, steps: int
) -> dict[str, Array]:
    beta, h, key = solver.step_size, problem.regularizer, jax.random.key(0)

    def step(at: _Carry, _: None) -> tuple[_Carry, dict[str, Array]]:
        state, x = at.state, at.state.x
        after = solver.step(problem, state, key)[0]
        y, v = after.y, after.aux
        solution, phi, gradient = reference(x)
        # d_k is computed again from y and v at the end of step k: recovering it from x_{k+1} would lose digits.
        estimate = _tree.subtract(problem.grad_upper(x, y)[0], problem.cross(x, y)(v))
        nearest = h.prox(_tree.axpy(-beta, gradient, x), beta)
        seen = dict(
            phi=phi,
            h=h.value(x),
            error=_distance(y, solution),
            warm=_distance(state.y, solution),
            moved=_distance(after.x, x),
            gradient=_tree.norm(gradient),
            gradient_error=_distance(estimate, gradient),
            mapping=_distance(x, nearest) / beta,
            distance=jnp.where(state.started, _tree.norm(_tree.axpy(1, state.subgradient, gradient)), 0),
            gradient_moved=_distance(gradient, at.gradient),
            solution_moved=_distance(solution, at.solution),
            extent=jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves((x, y))]).max(),
        )
        return _Carry(after, solution, gradient), seen

    first = reference(x0)
    start = _Carry(solver.init(problem, x0, y0), first.solution, first.gradient)
    return jax.lax.scan(step, start, length=steps)[1]


def _distance(left: PyTree, right: PyTree) -> Array:
    return _tree.norm(_tree.subtract(left, right))
