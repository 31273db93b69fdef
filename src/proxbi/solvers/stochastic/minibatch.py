"""Any solver with a fixed amount of work, on batches: each step is one of that solver on the problem of one batch.

With `ProxBiO(AID(Optax(adam, 5), Neumann(0.1, 10)), b)` this is stocBiO with any lower optimizer, with
`ProxBiO(ITD(GradientDescent(a, 1)), b)` the one unrolled step of Meta-Weight-Net, with `ITD(..., truncate=k)` truncated
unrolling: the inner steps of one outer step share its batch.
"""

from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import PRNGKeyArray, PyTree

from proxbi.certificate import Bounds, Certificate
from proxbi.problem import Problem, in_blocks
from proxbi.rows import Rows
from proxbi.solvers._base import Info, Solver
from proxbi.solvers.stochastic import _scale
from proxbi.solvers.stochastic._base import BLOCK, Draws, OnBatches


class MinibatchState(NamedTuple):
    """The state of the inner solver, and the position in the sequence of batches."""

    inner: Any
    draws: Draws

    @property
    def x(self) -> PyTree:
        """Of the solver inside."""
        return self.inner.x

    @property
    def y(self) -> PyTree:
        """Of the solver inside."""
        return self.inner.y


class Minibatch(OnBatches):
    r"""Each step is a step of `solver` on a new batch of rows.

    **Arguments:**

    - `solver`: one with step sizes of its own, such as `ProxBiO(AID(...), step_size)`.
    - `batch`, `sampling`, `certificate_rows`: see `OnBatches`.

    Its certificate is the stationarity that a step of `solver` on all rows reports.

    Reference: Ji, Yang, Liang, "Bilevel optimization: convergence analysis and enhanced design", ICML 2021 (stocBiO).

    >>> import jax, jax.numpy as jnp
    >>> from proxbi import AID, GradientDescent, Neumann, Problem, ProxBiO, Rows, minimize
    >>> t = jax.random.normal(jax.random.key(0), (640, 2))
    >>> def lower(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - x - batch["t"]) ** 2, axis=1))
    >>> def upper(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - batch["t"]) ** 2, axis=1)) / 2
    >>> problem = Problem(upper, lower, data=Rows(upper={"t": t}, lower={"t": t}))
    >>> inner = ProxBiO(AID(GradientDescent(0.2, steps=3), Neumann(0.2, steps=5)), step_size=0.02)
    >>> result = minimize(problem, jnp.ones(2), jnp.ones(2), Minibatch(inner), steps=500)
    >>> print(jnp.abs(result.x).max() < 0.1)
    True
    """

    solver: Solver = eqx.field(kw_only=False)

    def __check_init__(self) -> None:
        given: Any = self.solver
        if not isinstance(given, Solver) or isinstance(given, OnBatches):
            name = type(given).__name__
            raise TypeError(f"solver must be a solver of fixed work such as ProxBiO(AID(...), 0.1), got {name}.")
        if self.solver.looks_ahead:
            raise TypeError(
                f"solver must not be {type(self.solver).__name__}, which accepts steps by comparing values: those of "
                "different batches cannot be compared. Give ProxBiO(...), or use it on all rows: polish=True."
            )

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> MinibatchState:
        return MinibatchState(self.solver.init(_scale.sampled(self, problem), x, y), Draws.first())

    def step(self, problem: Problem, state: MinibatchState, key: PRNGKeyArray) -> tuple[MinibatchState, Info]:
        draws = state.draws.begun(key)
        here = self.drawn(problem, draws)
        inner, info = self.solver.step(here, state.inner, key)
        info = eqx.tree_at(lambda i: i.counts, info, here.with_rows(info.counts))
        return MinibatchState(inner, draws.next()), info

    def certificate(
        self, problem: Problem, before: Any, after: Any, info: Info, bounds: Bounds | None = None
    ) -> Certificate:
        """The stationarity that a step of the inner solver reports on all rows."""
        if not isinstance(problem.data, Rows):
            return self.solver.certificate(problem, before.inner, after.inner, info, bounds)
        inner, info = self.solver.step(in_blocks(problem, BLOCK), before.inner, before.draws.seed)
        info = eqx.tree_at(lambda i: i.counts, info, problem.with_rows(info.counts))
        return self.solver.certificate(problem, before.inner, inner, info, bounds)
