r"""F2SA with a prox: gradients only, on batches.

z tracks the lower solution, u the solution of the lower level plus f / l. Both use the same batches, so most of their
noise cancels in the difference:

    z+ = z - a g_y(x, z)
    u+ = u - a (g_y(x, u) + f_y(x, u) / l)
    D_x = f_x(x, u) + l (g_x(x, u) - g_x(x, z)),     x+ = prox_{b h}(x - b D_x)                      (F2SA)

D_x differs from the hypergradient by O(1 / l), even for exact u and z. l grows as l_t = l_0 (1 + growth t)^(1/3): the
bias falls, while the noise, which l multiplies, is averaged over more and more steps.

Kwon, Kwon, Wright, Nowak, "A fully first-order method for stochastic bilevel optimization", ICML 2023.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.certificate import Bounds, Certificate
from proxbi.hypergradient._controlled import ratio
from proxbi.lower import require_smooth
from proxbi.problem import Counts, Problem, in_blocks
from proxbi.rows import Rows
from proxbi.solvers._base import Info
from proxbi.solvers.stochastic import _scale
from proxbi.solvers.stochastic._base import BLOCK, Draws, Judged, Linear, Owed

CALLS = Counts(grad_lower=2, grad_lower_x=2, grad_upper=1)  # of one step


class F2SAState(NamedTuple):
    """x, z as `y`, u as `tilted`, and the rest."""

    x: PyTree
    y: PyTree
    tilted: PyTree
    subgradient: PyTree
    scale: _scale.Scale
    draws: Draws
    owed: Owed


class Found(NamedTuple):
    """The results of one step, the three directions first."""

    lower: PyTree
    tilted: PyTree
    outer: PyTree
    met: Scalar
    """The curvature of g between z and u."""


class ProxF2SA(Linear):
    r"""First-order steps of three variables:
    $x^+ = \mathrm{prox}_{\beta h}\big(x - \beta\,[f_x(x, u) + \lambda\,(g_x(x, u) - g_x(x, z))]\big)$.

    **Arguments:**

    - `step_size`, `lower_step_size`: b for x, a for z and u; None learns them, with a few Hessian products.
    - `penalty`: l_0. The bias of the hypergradient is O(1 / l).
    - `growth`: of l; 0 keeps it.
    - `batch`, `sampling`, `certificate_rows`: see `OnBatches`.

    Its certificate is that of its own hypergradient on all rows: the bias is not part of it.

    Reference: Kwon, Kwon, Wright, Nowak, ICML 2023.

    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> x0 = y0 = jnp.array(0.0)
    >>> result = minimize(scalar_problem(), x0, y0, ProxF2SA(0.1, 0.25, penalty=100.0, growth=0.0), steps=500)
    >>> print(result.x.round(2), result.counts.hvp)  # the minimiser is 2
    2.0 0
    """

    step_size: _check.Number = eqx.field(converter=_check.optional_float, default=None)
    lower_step_size: _check.Number = eqx.field(converter=_check.optional_float, default=None)
    penalty: _check.Number = eqx.field(converter=_check.as_float, default=10.0, kw_only=True)
    growth: _check.Number = eqx.field(converter=_check.as_float, default=0.01, kw_only=True)

    def __check_init__(self) -> None:
        for name in ("step_size", "lower_step_size"):
            if getattr(self, name) is not None:
                _check.positive(name, getattr(self, name))
        _check.positive("penalty", self.penalty)
        _check.non_negative("growth", self.growth)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> F2SAState:
        require_smooth(problem, type(self).__name__, "the default solver")
        scale, counts = _scale.learned(self, problem, x, y)
        return F2SAState(x, y, y, _tree.zeros_like(x), scale, Draws.first(), Owed(counts))

    def step(self, problem: Problem, state: F2SAState, key: PRNGKeyArray) -> tuple[F2SAState, Info]:
        state = state._replace(draws=state.draws.begun(key))
        here = self.drawn(problem, state.draws)
        found = self._directions(here, state)
        scale = state.scale.within(_tree.norm(found.outer))
        a, b = scale.lower, scale.outer
        forward = _tree.axpy(-b, found.outer, state.x)
        waits, step = b == 0, jnp.where(b == 0, 1, b)
        x = _tree.where(waits, state.x, problem.regularizer.prox(forward, step))
        moved = state._replace(
            x=x,
            y=_tree.axpy(-a, found.lower, state.y),
            tilted=_tree.axpy(-a, found.tilted, state.tilted),
            subgradient=_tree.scale(1 / step, _tree.subtract(forward, x)),
            scale=state.scale.following(found.met).adjusted(x, found.outer, b, state.draws.number + 1),
            draws=state.draws.next(),
            owed=state.owed.paid(),
        )
        counts = here.with_rows(CALLS) + state.owed.counts + Counts(prox=1)
        return moved, self._info(state, found, jax.tree.map(jnp.int32, counts))

    def certificate(
        self, problem: Problem, before: Any, after: Any, info: Info, bounds: Bounds | None = None
    ) -> Certificate:
        """Of its own hypergradient, on all rows."""
        if isinstance(problem.data, Rows):
            found = self._directions(in_blocks(problem, BLOCK), before)
            info = self._info(before, found, jax.tree.map(jnp.int32, problem.with_rows(CALLS)))
        return super().certificate(problem, before, after, info, bounds)

    def lower_means(self, problem: Problem, state: F2SAState) -> PyTree:
        x, z, u = state.x, state.y, state.tilted
        apart = _tree.subtract(problem.grad_lower_x(x, u), problem.grad_lower_x(x, z))
        return problem.grad_lower(x, z), problem.grad_lower(x, u), apart

    def upper_means(self, problem: Problem, state: F2SAState) -> PyTree:
        return problem.grad_upper(state.x, state.tilted)

    @property
    def calls(self) -> Counts:
        return CALLS

    def judged(self, state: F2SAState, lower: PyTree, upper: PyTree) -> Judged:
        found = self._found(state, lower, upper)
        return Judged(_tree.axpy(1, state.subgradient, found.outer), _tree.norm(found.lower), None)

    def _directions(self, problem: Problem, state: F2SAState) -> Found:
        return self._found(state, self.lower_means(problem, state), self.upper_means(problem, state))

    def _found(self, state: F2SAState, lower: PyTree, upper: PyTree) -> Found:
        (at_z, at_u, apart), (f_x, f_y), weight = lower, upper, self._weight(state)
        gap = _tree.subtract(state.tilted, state.y)
        met = ratio(_tree.dot(gap, _tree.subtract(at_u, at_z)), _tree.dot(gap, gap), otherwise=float("inf"))
        return Found(at_z, _tree.axpy(1 / weight, f_y, at_u), _tree.axpy(weight, apart, f_x), met)

    def _info(self, state: F2SAState, found: Found, counts: Counts) -> Info:
        stationarity = _tree.norm(_tree.axpy(1, state.subgradient, found.outer))
        return Info(stationarity, _tree.norm(found.lower), None, counts)

    def _weight(self, state: F2SAState) -> Scalar:
        """l_t."""
        dtype = state.scale.outer.dtype
        first, growth = jnp.asarray(self.penalty, dtype), jnp.asarray(self.growth, dtype)
        return first * (1 + growth * state.draws.number.astype(dtype)) ** (1 / 3)
