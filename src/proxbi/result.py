"""What `minimize` returns: a status in words, the iterates, the history, and how far from stationary they are."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import PyTree

from proxbi.checkpoint import Snapshot
from proxbi.problem import Counts

if TYPE_CHECKING:
    import pandas


class Status(Enum):
    """How a run ended, as a sentence that says what to do."""

    CONVERGED = "Converged: the stationarity at x is at most tol."
    STEPS = "All steps were taken. Give more steps, or resume, to go on."
    STOPPED = "A callback stopped the run."
    TIME = "The time limit was reached. Resume to go on."
    BUDGET = "The oracle budget was used up. Raise it, or resume, to go on."
    INTERRUPTED = "Interrupted: what was reached is returned. Resume to go on."
    DIVERGED = (
        "Diverged: an iterate became infinite or NaN; the last finite one is returned. Try an outer step_size 10 times "
        "smaller, and a lower step_size of at most 1/L, with L the largest curvature of the lower objective in y."
    )
    NONFINITE_START = (
        "The first step from x0, y0 is already infinite or NaN: the upper or lower objective, or a derivative of it, "
        "is not finite there, or a step_size is far too large. Evaluate problem.grad_upper(x0, y0) and "
        "problem.grad_lower(x0, y0) to see which."
    )
    NEGATIVE_CURVATURE = (
        "The lower objective is not strongly convex in y: its Hessian has a direction of curvature <= 0, and the "
        "implicit hypergradient is not defined. Add a ridge term in y to lower, or use ITD. The last iterate before "
        "that is returned."
    )
    ADJOINT_NONFINITE = (
        "The Hessian of the lower objective, or the upper gradient, is NaN or infinite, and the adjoint system cannot "
        "be solved. The last iterate before that is returned."
    )

    INFEASIBLE_START = (
        "The regularizer is infinite or NaN at x0, which is returned. Start where it is finite, for example at "
        "problem.regularizer.prox(x0, 1.0)."
    )
    UNBOUNDED = (
        "The objective falls without bound: it has decreased by more than 1e10 times its first value. The last iterate "
        "is returned. Check the sign of upper, or bound x by a regularizer such as Box."
    )
    NONSMOOTH = (
        "No step, however short, decreases the objective as its gradient promises: upper, or lower in its second "
        "derivatives, is not differentiable near x, or an overridden oracle is wrong. The best iterate is returned. "
        "Move the nonsmooth term in x into the regularizer, or smooth it."
    )
    LOWER_UNSOLVED = (
        "The lower problem at x0 could not be solved: Newton's method took 50 steps and its gradient is still large. "
        "Either lower has no minimiser in y, or it is not convex on the way there; start at a better y0, or add a "
        "ridge term in y."
    )
    PRECISION = (
        "Rounding hides all further progress before the tolerance was reached: x is as good as this precision allows. "
        "In float32, switch to float64 (jax_enable_x64) for more; in float64, loosen the tolerance or rescale."
    )

    @property
    def failed(self) -> bool:
        """Whether the run broke down, as opposed to having stopped."""
        stopped = (
            Status.CONVERGED,
            Status.STEPS,
            Status.STOPPED,
            Status.TIME,
            Status.BUDGET,
            Status.INTERRUPTED,
            Status.PRECISION,
        )
        return self not in stopped


class Seconds(NamedTuple):
    """Where the time went; metrics, callbacks and checkpoints are in neither."""

    compile: float
    run: float


@dataclass(frozen=True)
class Result:
    """What `minimize` returns. `str(result)` is a summary."""

    x: PyTree
    y: PyTree
    status: Status
    stationarity: float
    """A bound of dist(0, d(Phi + h)(x)) if `guaranteed`, else an estimate of it, taken after the run with oracle calls
    that `counts` leave out; infinity where that breaks down."""
    lower_residual: float
    """|grad_y g(x, y)| of that hypergradient."""
    linear_residual: float | None
    """The relative residual of its adjoint solve; None if there is none (ITD)."""
    history: list[dict[str, Any]]
    """One row for each chunk; its stationarity is that of the iterate one step before."""
    counts: Counts
    seconds: Seconds
    state: Snapshot
    """What `resume=` takes to go on from here."""
    hypergradient_error: float | None = None
    """The part of `stationarity` that is due to the inexact y and adjoint; None if the solver leaves no adjoint."""
    guaranteed: bool = False
    """Whether these two are bounds, from the constants given as `bounds`, or estimates."""

    def to_frame(self) -> "pandas.DataFrame":
        """The history as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.history)

    def __str__(self) -> str:
        adjoint = "" if self.linear_residual is None else f", adjoint residual {self.linear_residual:.1e}"
        objective = f", objective {self.history[-1]['objective']:.6g}" if self.history else ""
        kind = "at most " if self.guaranteed else ""
        return (
            f"{self.status.name} after {self.state.step} steps: stationarity {kind}{self.stationarity:.1e}{objective}, "
            f"lower residual {self.lower_residual:.1e}{adjoint}; {self.counts.total} oracle calls, "
            f"{self.seconds.run:.2f} s (+ {self.seconds.compile:.2f} s compiling). {self.status.value}"
        )


class SolveError(RuntimeError):
    """Raised where a run broke down and `throw=True`; `.result` holds the last finite iterate."""

    def __init__(self, result: Result):
        """Keep `result` and say what its status says."""
        super().__init__(f"{result.status.value} (After {result.state.step} steps; throw=False returns them.)")
        self.result = result
