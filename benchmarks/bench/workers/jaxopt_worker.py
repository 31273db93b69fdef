"""jaxopt: implicit differentiation of gradient descent, by CG."""

import warnings
from functools import partial
from importlib.metadata import version
from typing import Any

from common import Arrays, Sizes, serve
from in_jax import InJax


class Peer(InJax):
    def __init__(self, sizes: Sizes, given: Arrays):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it announces that it is no longer maintained
            import jaxopt
        super().__init__(sizes, given)
        self.version = f"jaxopt {version('jaxopt')}"
        self.inner = jaxopt.GradientDescent(
            fun=self.lower,
            stepsize=sizes["step_size"],
            maxiter=sizes["lower_steps"],
            tol=0.0,
            acceleration=False,
            implicit_diff=True,
            implicit_diff_solve=partial(jaxopt.linear_solve.solve_cg, tol=0.0, maxiter=sizes["cg_steps"]),
        )

    def solve(self, x: Any, y: Any) -> Any:
        return self.inner.run(y, x).params


serve(Peer)
