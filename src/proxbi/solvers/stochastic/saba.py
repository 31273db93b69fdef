r"""SABA with a prox: each of the five means is estimated as SAGA does it.

The rows of a level are divided once into blocks, in a random order. A table stores the means of each block at its last
visit. With i the block of this step, p_i its means now and T_i its entry in the table,

    estimate = p_i - T_i + mean(T),     then T_i <- p_i.                                     (SABA, (8))

The noise of the estimate vanishes as the iterates settle, so the steps need not decay. The first pass fills the table;
until it is full, the estimate is the mean over the blocks seen. From then on blocks are drawn independently, as in
the paper. (Going through all of them in turn, in a new order each time, takes twice as long on quadratics with the same
steps.) The rows after the last whole block are never used by steps: choose a batch size that divides the number of
rows, or polish.

Tables have the size (blocks) x (y, y and x) for lower and (x and y) for upper rows.

Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi import _tree
from proxbi.problem import Counts, Problem
from proxbi.rows import Rows, Sampling
from proxbi.rows._batches import Level
from proxbi.solvers.stochastic._base import CALLS, Draws, LoopState, Pieces, SingleLoop, pieces

ORDERS: tuple[Literal["epochs"], Literal["replacement"]] = ("epochs", "replacement")


class Table(NamedTuple):
    """The means of the blocks of one level at their last visits, the mean of these, and the number of blocks
    visited.
    """

    entries: PyTree
    mean: PyTree
    seen: Int[Array, ""]


class ProxSABA(SingleLoop):
    r"""One block of rows of each level in each step, with the tables of SAGA:
    $x^+ = \mathrm{prox}_{\beta h}(x - \beta D_x)$, where the noise of $D_x$ vanishes at the solution.

    **Arguments:** those of `ProxSOBA` except `average`. The rows and the tables must fit on the device.

    Reference: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022.

    >>> import jax, jax.numpy as jnp
    >>> from proxbi import Problem, Rows, minimize
    >>> t = jax.random.normal(jax.random.key(0), (640, 2))
    >>> def lower(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - x - batch["t"]) ** 2, axis=1))
    >>> def upper(x, y, batch):
    ...     return jnp.mean(jnp.sum((y - batch["t"]) ** 2, axis=1)) / 2
    >>> problem = Problem(upper, lower, data=Rows(upper={"t": t}, lower={"t": t}))
    >>> result = minimize(problem, jnp.ones(2), jnp.ones(2), ProxSABA(), steps=1000)
    >>> print(jnp.abs(result.x).max() < 1e-4)  # noise that does not vanish would be about 1e-2
    True
    """

    def __check_init__(self) -> None:
        if self.sampling != "epochs":
            raise ValueError('sampling must be "epochs" for ProxSABA: what it draws are blocks, which are fixed.')

    @property
    def caution(self) -> float:
        return 1 / 3  # Defazio, Bach, Lacoste-Julien, "SAGA", 2014, Theorem 1: entries of the table are out of date

    @property
    def reads_all_rows(self) -> bool:
        return True

    def remembered(self, problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> PyTree:
        data = problem.data
        if not isinstance(data, Rows):
            return None
        return _empty(self.blocks(data, "lower"), (y, y, x)), _empty(self.blocks(data, "upper"), (x, y))

    def estimate(self, problem: Problem, state: LoopState, key: PRNGKeyArray) -> tuple[Pieces, PyTree, Counts]:
        here = self.drawn(problem, state.draws)
        said, counts = pieces(here, state.x, state.y, state.v), here.with_rows(CALLS)
        if state.memory is None:
            return said, None, counts
        lower, low = _saga(state.memory[0], self.block(problem.data, "lower", state.draws), said.lower)
        upper, up = _saga(state.memory[1], self.block(problem.data, "upper", state.draws), said.upper)
        return Pieces(lower, upper), (low, up), counts

    def index(self, data: Rows, level: Level, draws: Draws) -> Int[Array, " batch"]:
        """The rows of the block of this step: those of one batch of the first epoch."""
        return super().index(data, level, draws._replace(number=self.block(data, level, draws)))

    def block(self, data: Rows, level: Level, draws: Draws) -> Int[Array, ""]:
        """The block of this step: each in turn until the table is full, then at random."""
        blocks, seed = self.blocks(data, level), self.level_seed(level, draws.seed)
        in_turn, any_of = (Sampling(1, blocks, order).index(seed, draws.number)[0] for order in ORDERS)
        return jnp.where(draws.number < blocks, in_turn, any_of)

    def blocks(self, data: Rows, level: Level) -> int:
        """How many there are."""
        rows = self.rows_of(data, level)
        return rows.rows // rows.batch


def _empty(blocks: int, like: PyTree) -> Table:
    entries = jax.tree.map(lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), like)
    return Table(entries, _tree.zeros_like(like), jnp.int32(0))


def _saga(table: Table, block: Int[Array, ""], said: PyTree) -> tuple[PyTree, Table]:
    """The estimate, and the table after it. In the first pass the mean is over the blocks seen, this one included."""
    blocks = jax.tree.leaves(table.entries)[0].shape[0]
    filling = table.seen < blocks
    change = _tree.subtract(said, jax.tree.map(lambda entries: entries[block], table.entries))
    seen = jnp.minimum(table.seen + 1, blocks)
    # While it fills, the change is all of what the block says: the mean moves towards it by 1 / seen.
    part = 1 / seen.astype(float)
    mean = _tree.axpy(part, _tree.where(filling, _tree.subtract(said, table.mean), change), table.mean)
    estimate = _tree.where(filling, mean, _tree.axpy(1, change, table.mean))
    entries = jax.tree.map(lambda entries, new: entries.at[block].set(new), table.entries, said)
    return estimate, Table(entries, mean, seen)
