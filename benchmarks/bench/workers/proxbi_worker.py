"""proxbi: `glm.linear_model` under the paper's solver; and, for a race, the default solver."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import Arrays, Sizes, arrays, objective, outputs, seconds, serve, start

import proxbi
from proxbi import AID, CG, Box, GradientDescent, NegativeCappedL1, ProxBiO, _compile, minimize, sweep
from proxbi.glm import linear_model

NEVER = 1e-30  # a tolerance that is not reached: all steps are taken


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

    def _start(self) -> tuple[Any, Any]:
        return jnp.asarray(start(self.sizes)), self.y0

    def default(self) -> dict[str, Any]:
        """`minimize` as it is, to its own end; the second time, when it is compiled."""
        minimize(self.problem, *self._start())
        spent, result = seconds(lambda: minimize(self.problem, *self._start()))
        return {
            "seconds": spent,
            "objective": objective(self.sizes, arrays(self.sizes), np.asarray(result.x)),
            "status": result.status.name,
            "products": int(result.counts.hvp),
        }

    def paper(self, repeats: int) -> dict[str, Any]:
        """`minimize` with the paper's solver; the first run compiles."""
        options = {"steps": self.sizes["steps"], "throw": False, "tol": NEVER}
        solver = self.solver(self.sizes["outer_step"])
        minimize(self.problem, *self._start(), solver, **options)
        found = [seconds(lambda: minimize(self.problem, *self._start(), solver, **options))[0] for _ in range(repeats)]
        return {"seconds": found}

    def sweeping(self, count: int) -> dict[str, Any]:
        """`count` step sizes in one program, and one by one."""
        solvers = [self.solver(beta) for beta in np.geomspace(0.01, 1, count)]
        options = {"steps": self.sizes["steps"], "tol": NEVER}

        def one_by_one() -> list[Any]:
            return [minimize(self.problem, *self._start(), solver, **options, throw=False) for solver in solvers]

        def together() -> list[Any]:
            return sweep(self.problem, solvers, *self._start(), **options, throw=False).results

        first, alone = together(), one_by_one()
        apart = max(float(jnp.abs(a.x - b.x).max()) for a, b in zip(first, alone, strict=True))
        spent = {"together": seconds(together)[0], "one_by_one": seconds(one_by_one)[0]}
        return spent | {"apart": apart}


if __name__ == "__main__":
    serve(Peer)
