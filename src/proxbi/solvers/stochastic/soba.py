r"""SOBA with a prox, and its moving average.

With batches I of lower and J of upper rows, all at (x, y, v),

    D_y = g_y(I),    D_v = g_yy(I) v - f_y(J),    D_x = f_x(J) - g_xy(I) v                      (SOBA, (6))
    m  <- k m + (1 - k) D_x,     x+ = prox_{b h}(x - b m)                                       (MA-SOBA)

Dagreou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global variance
reduction algorithms", NeurIPS 2022. Chen, Xiao, Balasubramanian, "Optimal algorithms for stochastic bilevel
optimization under relaxed smoothness conditions", JMLR 2024 (MA-SOBA).
"""

from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray, PyTree

from proxbi import _check
from proxbi.problem import Counts, Problem
from proxbi.solvers.stochastic._base import CALLS, LoopState, Pieces, SingleLoop, pieces


class ProxSOBA(SingleLoop):
    r"""One batch of each level, one step each of y, v and x:
    $x^+ = \mathrm{prox}_{\beta h}(x - \beta m)$ with m the moving average of $f_x - g_{xy} v$.

    **Arguments:**

    - `step_size`, `lower_step_size`: b for x, a for y and v; None learns them at the start.
    - `average`: k, the part of the last direction that is kept; 0 is SOBA, more is MA-SOBA, which averages the noise
      out before the prox sees it.
    - `batch`, `sampling`, `half_life`, `damping`, `optimizer`, `certificate_rows`: see `SingleLoop` and `OnBatches`.

    Reference: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022; Chen, Xiao, Balasubramanian, JMLR 2024.

    >>> import jax, jax.numpy as jnp
    >>> from proxbi import L1, Problem, Rows, minimize
    >>> t = jax.random.normal(jax.random.key(0), (1000, 2)) + 2
    >>> def lower(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - x - batch["t"]) ** 2, axis=1))
    >>> def upper(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - 3 + 0 * batch["t"]) ** 2, axis=1)) / 2
    >>> problem = Problem(upper, lower, L1(0.5), data=Rows(upper={"t": t}, lower={"t": t}))
    >>> result = minimize(problem, jnp.zeros(2), jnp.zeros(2), ProxSOBA(0.05, 0.1, half_life=200), steps=2000)
    >>> print(result.x.round(1), result.counts.rows > 0)  # y*(x) = x + mean(t), so x is 3 - 2 - 0.5
    [0.5 0.5] True
    """

    average: _check.Number = eqx.field(converter=_check.as_float, default=0.9, kw_only=True)

    def __check_init__(self) -> None:
        _check.below_one("average", self.average)

    @property
    def momentum(self) -> Any:
        return self.average

    def remembered(self, problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> PyTree:
        return None

    def estimate(self, problem: Problem, state: LoopState, key: PRNGKeyArray) -> tuple[Pieces, PyTree, Counts]:
        here = self.drawn(problem, state.draws)
        return pieces(here, state.x, state.y, state.v), None, here.with_rows(CALLS)
