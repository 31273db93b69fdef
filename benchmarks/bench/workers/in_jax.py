"""The formulas and the outer loop in JAX, for all peers that are written with it."""

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import Arrays, Sizes, outputs, prox


class InJax:
    """f and g, with the data as constants: XLA may then transpose X while it compiles, which is the fastest form."""

    version: str

    def __init__(self, sizes: Sizes, given: Arrays):
        self.sizes = sizes
        self.data = {key: jnp.asarray(value) for key, value in given.items()}
        self.y0 = jnp.zeros((outputs(sizes), sizes["features"]), jnp.float32)
        self.run = jax.jit(self._run)

    @abstractmethod
    def solve(self, x: Any, y: Any) -> Any:
        """The lower steps from y, as a function that can be differentiated in x."""

    def losses(self, y: Any, part: str) -> Any:
        z, t = self.data[part] @ y.T, self.data[f"{part}_targets"]
        if self.sizes["loss"] == "softmax":
            hot = t[:, None] == jnp.arange(z.shape[1])
            return jax.nn.logsumexp(z, axis=1) - jnp.sum(jnp.where(hot, z, 0), axis=1)
        if self.sizes["loss"] == "logistic":
            return jax.nn.softplus(z[:, 0]) - t * z[:, 0]
        return (z[:, 0] - t) ** 2 / 2

    def lower(self, y: Any, x: Any) -> Any:
        if self.sizes["x_is"] == "weights":
            fit = jnp.mean(jax.nn.sigmoid(x) * self.losses(y, "rows"))
            return fit + 0.5 * self.sizes["ridge"] * jnp.sum(y**2)
        return jnp.mean(self.losses(y, "rows")) + 0.5 * jnp.sum(jnp.exp(x) * y**2)

    def phi(self, x: Any, y: Any) -> tuple[Any, Any]:
        y = self.solve(x, y)
        return jnp.mean(self.losses(y, "held_out")), y

    def _run(self, x: Any, count: Any, outer_step: Any) -> Any:
        def step(_: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
            gradient, y = jax.grad(self.phi, has_aux=True)(*at)
            return prox(jnp, at[0] - outer_step * gradient, outer_step, self.sizes), y

        return jax.lax.fori_loop(0, count, step, (x, self.y0))[0]

    def steps(self, x: np.ndarray, count: int, outer_step: float) -> np.ndarray:
        return np.asarray(self.run(jnp.asarray(x), count, outer_step))

    def hypergradient(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(jax.jit(jax.grad(self.phi, has_aux=True))(jnp.asarray(x), self.y0)[0])
