"""proxbi: `glm.linear_model` under the paper's solver; and, for a race, the default solver."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import Arrays, Sizes, outputs, serve

import proxbi
from proxbi import _compile
from proxbi import AID, CG, Box, GradientDescent, NegativeCappedL1, ProxBiO
from proxbi.glm import linear_model


class Peer:
    def __init__(self, sizes: Sizes, given: Arrays):
        self.version, self.sizes = f"proxbi {proxbi.__version__}", sizes
        by_weights = sizes["x_is"] == "weights"
        self.problem = linear_model(
            (given["rows"], given["rows_targets"]),
            (given["held_out"], given["held_out_targets"]),
            sizes["loss"],
            weights=jax.nn.sigmoid if by_weights else 1.0,
            ridge=np.float32(sizes["ridge"]) if by_weights else jnp.exp,
            regularizer=NegativeCappedL1(sizes["strength"], sizes["cap"])
            if sizes["strength"]
            else Box(-sizes["bound"], sizes["bound"]),
        )
        self.y0 = jnp.zeros((outputs(sizes), sizes["features"]), jnp.float32)
        self.run = _compile.jit(self._run)

    def solver(self, outer_step: Any) -> ProxBiO:
        # tol = 0: CG takes all of its steps.
        lower = GradientDescent(self.sizes["step_size"], self.sizes["lower_steps"])
        return ProxBiO(AID(lower, CG(self.sizes["cg_steps"], tol=0.0), warm=False), outer_step)

    def _run(self, problem: Any, x: Any, count: Any, outer_step: Any) -> Any:
        solver = self.solver(outer_step)
        state = solver.init(problem, x, self.y0)
        return jax.lax.fori_loop(0, count, lambda k, s: solver.step(problem, s, jax.random.key(0))[0], state).x

    def steps(self, x: np.ndarray, count: int, outer_step: float) -> np.ndarray:
        return np.asarray(self.run(self.problem, jnp.asarray(x), count, jnp.float32(outer_step)))

    def hypergradient(self, x: np.ndarray) -> np.ndarray:
        hypergradient = self.solver(1.0).hypergradient
        at = jnp.asarray(x)
        return np.asarray(hypergradient(self.problem, at, self.y0, hypergradient.init(self.problem, at, self.y0)).grad)


if __name__ == "__main__":
    serve(Peer)
