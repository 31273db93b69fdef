"""optimistix: implicit differentiation of gradient descent, by lineax's CG."""

from typing import Any

from common import Arrays, Sizes, serve
from in_jax import InJax


class Peer(InJax):
    def __init__(self, sizes: Sizes, given: Arrays):
        import lineax as lx
        import optimistix as optx

        class FixedCG(lx.CG):
            """CG that may end after its steps: lineax would call that a failure, and raise."""

            def compute(self, *arguments: Any) -> Any:
                found, _, stats = super().compute(*arguments)
                return found, lx.RESULTS.successful, stats

        super().__init__(sizes, given)
        self.version = f"optimistix {optx.__version__}"
        self.minimise, self.tags = optx.minimise, frozenset({lx.positive_semidefinite_tag})
        self.solver = optx.GradientDescent(learning_rate=sizes["step_size"], rtol=0.0, atol=0.0)
        self.adjoint = optx.ImplicitAdjoint(FixedCG(rtol=1e-7, atol=1e-12, max_steps=sizes["cg_steps"]))

    def solve(self, x: Any, y: Any) -> Any:
        options = {"args": x, "adjoint": self.adjoint, "tags": self.tags, "throw": False}
        return self.minimise(self.lower, self.solver, y, max_steps=self.sizes["lower_steps"], **options).value


serve(Peer)
