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

    @property
    def failed(self) -> bool:
        """Whether the run broke down, as opposed to having stopped."""
        return self in (Status.DIVERGED, Status.NONFINITE_START, Status.NEGATIVE_CURVATURE, Status.ADJOINT_NONFINITE)


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
    """An estimate of dist(0, d(Phi + h)(x)) at this x, by one more hypergradient after the run (which `counts` leave
    out); infinity where that breaks down."""
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

    def to_frame(self) -> "pandas.DataFrame":
        """The history as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.history)

    def __str__(self) -> str:
        adjoint = "" if self.linear_residual is None else f", adjoint residual {self.linear_residual:.1e}"
        objective = f", objective {self.history[-1]['objective']:.6g}" if self.history else ""
        return (
            f"{self.status.name} after {self.state.step} steps: stationarity {self.stationarity:.1e}{objective}, "
            f"lower residual {self.lower_residual:.1e}{adjoint}; {self.counts.total} oracle calls, "
            f"{self.seconds.run:.2f} s (+ {self.seconds.compile:.2f} s compiling). {self.status.value}"
        )


class SolveError(RuntimeError):
    """Raised where a run broke down and `throw=True`; `.result` holds the last finite iterate."""

    def __init__(self, result: Result):
        """Keep `result` and say what its status says."""
        super().__init__(f"{result.status.value} (After {result.state.step} steps; throw=False returns them.)")
        self.result = result
