r"""SRBA with a prox: the five means are estimated as SARAH and PAGE do it.

With p = (x, y, v) the present point, p' the last one, and the same batch I at both,

    estimate = mean over all rows at p,                                   with probability q     (PAGE)
    estimate = last estimate + mean_I(p) - mean_I(p'),                    otherwise              (SRBA, (9))

Errors of the differences add up until all rows are used again. They are as small as the steps, so the steps need not
decay. q = b / (b + N) balances the costs of both kinds of steps (Li et al., Corollary 2). No tables.

Dagreou, Moreau, Vaiter, Ablin, "A lower bound and a near-optimal algorithm for bilevel empirical risk minimization",
AISTATS 2024. Li, Bao, Zhang, Richtarik, "PAGE", ICML 2021.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi.problem import Counts, Problem, in_blocks
from proxbi.rows import Rows
from proxbi.solvers.stochastic._base import BLOCK, CALLS, LoopState, Pieces, SingleLoop, pieces


class Last(NamedTuple):
    """The last point and the estimate there."""

    x: PyTree
    y: PyTree
    v: PyTree
    said: Pieces


class ProxSRBA(SingleLoop):
    r"""One batch at two points in each step, and sometimes all rows:
    $x^+ = \mathrm{prox}_{\beta h}(x - \beta D_x)$, where the noise of $D_x$ shrinks with the steps.

    **Arguments:**

    - `refresh`: q, the probability of a step with all rows; None: b / (b + N) of the lower rows.
    - the others are those of `ProxSOBA` except `average`. The rows must fit on the device.

    Reference: Dagreou, Moreau, Vaiter, Ablin, AISTATS 2024; Li, Bao, Zhang, Richtarik, ICML 2021.

    >>> import jax, jax.numpy as jnp
    >>> from proxbi import Problem, Rows, minimize
    >>> t = jax.random.normal(jax.random.key(0), (640, 2))
    >>> def lower(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - x - batch["t"]) ** 2, axis=1))
    >>> def upper(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - batch["t"]) ** 2, axis=1)) / 2
    >>> problem = Problem(upper, lower, data=Rows(upper={"t": t}, lower={"t": t}))
    >>> result = minimize(problem, jnp.ones(2), jnp.ones(2), ProxSRBA(), steps=500)
    >>> print(jnp.abs(result.x).max() < 1e-4)  # noise that does not vanish would be about 1e-2
    True
    """

    refresh: _check.Number = eqx.field(converter=_check.optional_float, default=None, kw_only=True)

    def __check_init__(self) -> None:
        if self.refresh is not None:
            _check.positive("refresh", self.refresh)

    @property
    def reads_all_rows(self) -> bool:
        return True

    def remembered(self, problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> PyTree:
        if not isinstance(problem.data, Rows):
            return None
        return Last(x, y, v, _tree.zeros_like(Pieces((y, y, x), (x, y))))

    def estimate(self, problem: Problem, state: LoopState, key: PRNGKeyArray) -> tuple[Pieces, PyTree, Counts]:
        point, last = (state.x, state.y, state.v), state.memory
        if last is None:
            return pieces(problem, *point), None, problem.with_rows(CALLS)
        here = self.drawn(problem, state.draws)
        batch, rows = len(here.lower_data), len(problem.lower_data)
        chance = batch / (batch + rows) if self.refresh is None else self.refresh
        afresh = (state.draws.number == 0) | jax.random.bernoulli(key, chance)

        def all_rows() -> tuple[Pieces, Counts]:
            return pieces(in_blocks(problem, BLOCK), *point), _ints(problem.with_rows(CALLS))

        def differences() -> tuple[Pieces, Counts]:
            now, before = pieces(here, *point), pieces(here, last.x, last.y, last.v)
            return _tree.axpy(1, _tree.subtract(now, before), last.said), _ints(here.with_rows(CALLS + CALLS))

        said, counts = jax.lax.cond(afresh, all_rows, differences)
        return said, Last(*point, said), counts


def _ints(counts: Counts) -> Counts:
    return jax.tree.map(jnp.int32, counts)
