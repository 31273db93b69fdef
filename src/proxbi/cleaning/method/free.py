r"""The method of the paper: one parameter x_i per row, and sigmoid(x_i) as its weight.

upper   mean cross-entropy over one half of the trusted rows
lower   the weighted softmax regression of `problem.py`, on the mapped features
h(x)  = -strength sum_i min(|x_i|, cap), which drives weights away from 1/2

There are as many parameters as rows, and more than trusted rows. So the solver overfits: the loss on the trusted rows
that it sees keeps falling long after the loss on others has begun to rise. Therefore the ridge is strong, all rows
start as good (x_i > 0), and the run stops at the smallest loss on the other half of the trusted rows. The history
contains both losses.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from proxbi._minimize import minimize
from proxbi.cleaning.method.bilevel import outer_step, raise_if_interrupted
from proxbi.cleaning.method.weightings import Task
from proxbi.cleaning.problem import cross_entropy, hyper_cleaning
from proxbi.cleaning.result import OuterStep
from proxbi.datasets import Labelled
from proxbi.hypergradient import Implicit
from proxbi.regularizers import NegativeCappedL1
from proxbi.result import HistoryRow, Snapshot
from proxbi.solvers import AdaptiveProxBiO

START, RIDGE, STRENGTH, CAP = 2.0, 2e-4, 0.1, 4.0
STEPS, PATIENCE = 30, 4
"""The maximal number of steps, and the number of steps without a better held-out loss that ends the run."""
FEWEST = 4
"""Trusted rows: one to learn from and one to stop by, in each half of the comparison."""


class Free:
    """A weighting, like those of `weightings.py`; `history` is the history of its last run."""

    def __init__(self) -> None:
        """No run yet."""
        self.history: list[OuterStep] = []

    def __call__(self, task: Task) -> Float[Array, " rows"]:
        """sigmoid(x), and 1 for rows without a parameter."""
        rows = Labelled(np.asarray(task.rows.features), np.asarray(task.rows.given.labels))
        trusted = np.asarray(task.rows.trusted) > 0
        noisy, gold = np.flatnonzero(~trusted & (np.asarray(task.rows.repeats) > 0)), np.flatnonzero(trusted)
        found, self.history = _solve(rows.take(noisy), rows.take(gold[::2]), rows.take(gold[1::2]), task)
        weights = np.ones(len(trusted), np.float32)
        weights[noisy] = found
        return jnp.asarray(weights)


def _solve(
    noisy: Labelled, seen: Labelled, held_out: Labelled, task: Task
) -> tuple[Float[np.ndarray, " noisy"], list[OuterStep]]:
    """The weights where the held-out loss was least, and the history."""
    shape = (len(task.settings["by_class"]), noisy.features.shape[1])
    problem = hyper_cleaning(noisy, seen, RIDGE, NegativeCappedL1(STRENGTH / len(noisy.labels), CAP))
    x0, y0 = jnp.full(len(noisy.labels), START, jnp.float32), jnp.zeros(shape, jnp.float32)
    history: list[OuterStep] = []
    best = x0

    def watch(row: HistoryRow, snapshot: Snapshot) -> bool:
        nonlocal best
        loss = float(_loss(snapshot.state.y, jnp.asarray(held_out.features), jnp.asarray(held_out.labels)))
        if not history or loss < min(past.held_out for past in history):
            best = snapshot.state.x
        history.append(outer_step(row, row["upper"], loss))
        losses = [past.held_out for past in history]
        return len(losses) - int(np.argmin(losses)) > PATIENCE

    result = minimize(
        problem,
        x0,
        y0,
        AdaptiveProxBiO(Implicit(inner_steps=200)),
        steps=STEPS,
        every=1,
        callbacks=[watch],
        throw=False,
    )
    raise_if_interrupted(result.status)
    return np.asarray(jax.nn.sigmoid(best)), history


@jax.jit
def _loss(weights: Array, features: Array, labels: Array) -> Array:
    return jnp.mean(cross_entropy(weights, {"features": features, "labels": labels}))
