"""Whether functions of rows look at their own rows only (`rows._own`), with rows that this process has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxbi.glm.problem import WeightedLoss
from proxbi.rows._batches import LEVELS
from proxbi.rows._own import Trial, require_none, trial_at
from proxbi.rows._own import require_own_rows as require_own_rows_of


def require_own_rows(problem: Any, x0: PyTree, y0: PyTree, count: int) -> None:
    """Refuse weights, a ridge, upper or lower that mix rows."""
    at = trial_at(x0, y0, count)
    if isinstance(problem.lower, WeightedLoss):
        _require_own_weights(problem, at)
        return
    for level in LEVELS:
        function, source = _here(getattr(problem, level), at.few, 0), getattr(problem.data, level)
        rows = _here(source.rows, min(at.few, len(source)), source.places)
        require_own_rows_of(level, function, rows, len(source), at)


def _require_own_weights(problem: Any, at: Trial) -> None:
    places = problem.lower.weights.places
    weights_of, ridge_of = (_here(f, at.few, places) for f in (problem.lower.weights.of, problem.lower.ridge))

    def first_weight(x: PyTree) -> Any:
        weights = jnp.asarray(weights_of(x))
        return weights[0] if weights.ndim else weights

    try:
        require_none("weights", first_weight, at, first=1)
        require_none("ridge", lambda x: sum(map(jnp.sum, jax.tree.leaves(ridge_of(x)))), at, first=0)
    except (TypeError, IndexError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"weights or ridge fail on the first entries of x0: {line}") from error


def _here(tree: PyTree, few: int, places: int) -> PyTree:
    """With what this process holds of each array: all, or a few rows, which are others in other processes."""

    def one(leaf: Any) -> np.ndarray:
        part = np.asarray(leaf.addressable_shards[0].data)
        return part[:few] if np.ndim(leaf) > 0 and np.shape(leaf)[0] == places else part

    return jax.tree.map(one, tree)
