"""The result of `minimize`: a status in words, the iterates, the history, and the stationarity at the end."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from jaxtyping import PyTree

from proxbi.problem import Counts

if TYPE_CHECKING:
    import pandas


class HistoryRow(TypedDict):
    """One row of `Result.history`; callbacks get the same. Columns are the keys of a dictionary: `row["objective"]`.
    A callback may add columns.

    | column | |
    |---|---|
    | `step` | outer steps so far |
    | `objective` | f(x, y) + h(x) |
    | `upper`, `regularizer` | f(x, y) and h(x) |
    | `stationarity` | estimate of dist(0, d(Phi + h)(x)); of the previous x for solvers that do not look ahead |
    | `relative` | the same relative to the scale of `rtol`; None if the solver has no such scale |
    | `lower_residual` | norm of g_y |
    | `linear_residual` | relative residual of the adjoint solve; None if there is none |
    | `grad_lower`, `grad_upper`, `grad_lower_x` | gradients so far: g_y, (f_x, f_y), g_x |
    | `hvp`, `cross` | Hessian products g_yy v and cross products g_xy v so far |
    | `prox`, `prox_lower` | proxes of h and of the lower regularizer so far |
    | `value_upper`, `value_lower` | values of f and g so far |
    | `rows` | derivatives of single rows so far, with minibatches |
    | `seconds` | run time so far, without compiling, metrics, callbacks and checkpoints |

    >>> import jax.numpy as jnp
    >>> from proxbi import minimize
    >>> from proxbi.analytic import scalar_problem
    >>> result = minimize(scalar_problem(), jnp.array(0.0), jnp.array(0.0))
    >>> result.history[-1]["objective"] == result.objective
    True
    """

    step: int
    objective: float
    upper: float
    regularizer: float
    stationarity: float
    relative: float | None
    lower_residual: float
    linear_residual: float | None
    grad_lower: int
    grad_upper: int
    hvp: int
    cross: int
    prox: int
    value_upper: int
    value_lower: int
    grad_lower_x: int
    prox_lower: int
    rows: int
    seconds: float


class Snapshot(NamedTuple):
    """The complete state of a run: enough to continue it as if it had never stopped.

    Example: `minimize`, whose `result.state` is one.
    """

    step: int
    state: PyTree
    counts: Counts
    history: list[Any]
    """Rows of the run: each a `HistoryRow` in runs of `minimize`."""


class Status(Enum):
    """How a run ended, as a sentence that says what to do."""

    CONVERGED = "Converged: the stationarity at x is at most the tolerance."
    STEPS = "Stopped after `steps` steps without reaching the tolerance. Raise steps=, or pass this result as resume=."
    STOPPED = "A callback stopped the run."
    TIME = "The time limit was reached. Pass this result as resume= to continue."
    BUDGET = "The oracle budget was used up. Raise it, or pass this result as resume= to continue."
    INTERRUPTED = "Interrupted: the last iterate is returned. Pass this result as resume= to continue."
    PREEMPTED = (
        "Stopped by SIGTERM: the newest checkpoint holds the last iterate. To continue, start the same program again "
        "with the checkpoint directory as resume=."
    )
    PRECISION = (
        "Stopped at the limit of floating-point precision, before the tolerance was reached: the best point found is "
        "returned. In float32, switch to float64 (jax_enable_x64); in float64, loosen the tolerance or rescale."
    )
    ACTIVE_SET = (
        "Stopped where the active set of the lower level changes: the objective has a kink at x, and no step, however "
        "short, decreases it as much as the slope on its side predicts. For a single number x that is a minimum; the "
        "stationarity is that of one side. If x has several entries, start again close to this x to make sure."
    )
    FLAT_START = (
        "The hypergradient at x0 is zero, or so small that the run jumped to another flat region: either x0 happens to "
        "be stationary, or the objective is flat there (a dead relu, the square of 0, a saturated sigmoid), or the "
        "arguments of upper or lower are swapped. Start elsewhere, and run check(problem, x0, y0)."
    )
    DIVERGED = (
        "Diverged: an iterate became infinite or NaN; the last finite one is returned. Use an outer step_size 10 "
        "times smaller, and a lower step_size of at most 1/L, with L the largest curvature of the lower objective in "
        "y; or use the default solver, which has no step sizes to set."
    )
    NONFINITE_START = (
        "The upper or lower objective, or one of its derivatives, is infinite or NaN at x0, y0 or during the first "
        "lower solve. Evaluate problem.value_lower(x0, y0), problem.grad_upper(x0, y0) and problem.grad_lower(x0, "
        "y0) to see which; the usual cause is a y0 outside the domain of lower."
    )
    NEGATIVE_CURVATURE = (
        "The lower objective is not convex in y: its Hessian has a direction of negative curvature, and the implicit "
        "hypergradient is not defined. Check the sign of lower and the order of its arguments; start at a y0 close to "
        "a minimiser; add a sufficiently large ridge term in y, or let AdaptiveProxBiO(Implicit(damping=...)) add it; "
        "or use ITD. The last iterate before that is returned."
    )
    NOT_STRONGLY_CONVEX = (
        "The lower objective is not strongly convex in y: it is flat in some direction, or keeps decreasing towards "
        "infinity (more coefficients than rows, separable classes), so it has no minimiser, or more than one. Add "
        "a ridge term in y to lower, such as 1e-3 * jnp.sum(y**2), or let AdaptiveProxBiO(Implicit(damping=1e-3)) add "
        "it: the result is then about the damped problem."
    )
    LOWER_NONSMOOTH = (
        "The lower objective is not smooth in y: its slope jumps near y* (an absolute value, a hinge, a maximum), and "
        "Newton's method does not converge there. Give the nonsmooth term as lower_regularizer=, such as lambda x: "
        "L1(jnp.exp(x)), or smooth it: softplus for a hinge or a relu, logsumexp for a maximum, sqrt(y**2 + "
        "1e-6) for |y|."
    )
    ADJOINT_NONFINITE = (
        "The Hessian of the lower objective, or the upper gradient, is NaN or infinite, so the adjoint system cannot "
        "be solved. The last iterate before that is returned."
    )
    INFEASIBLE_START = (
        "The regularizer is infinite or NaN at x0, which is returned. Start where it is finite, for example at "
        "problem.regularizer.prox(x0, 1.0)."
    )
    UNBOUNDED = (
        "The objective is unbounded below: x has moved 1e8 times as far as in the first step, or the objective is "
        "below -1e150, and the slope does not decrease. Check the sign of upper, or bound x by a regularizer such as "
        "Box."
    )
    NONSMOOTH = (
        "No step, however short, decreases the objective as much as its gradient predicts. The best point found is "
        "returned. In float32 this may be rounding: try float64 (jax_enable_x64) first. Otherwise upper, or lower in "
        "its second derivatives, is not differentiable near x, or an overridden oracle is wrong. Move a nonsmooth term "
        "in x into the regularizer, or smooth it."
    )
    LOWER_UNSOLVED = (
        "The lower problem, or the adjoint system, could not be solved accurately at x0, or at the x that is returned: "
        "no certificate holds there. Start at a better y0, rescale y so that its entries are of similar size, keep x "
        "in a Box, or add a ridge term in y, as AdaptiveProxBiO(Implicit(damping=...)) does. check(problem, x0, y0) "
        "looks for kinks, flat directions and a y that diverges."
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
            Status.PREEMPTED,
            Status.PRECISION,
            Status.ACTIVE_SET,
            Status.FLAT_START,
        )
        return self not in stopped

    @property
    def exit_code(self) -> int:
        """The exit code for a program that ends with this status: 0; 1 if the run broke down; 75 ("try again",
        EX_TEMPFAIL) if it should be resumed, on which schedulers can be configured to requeue; 130 after Ctrl-C.
        """
        special = {Status.PREEMPTED: 75, Status.INTERRUPTED: 130}
        return special.get(self, int(self.failed))


class Seconds(NamedTuple):
    """Seconds spent compiling and running; metrics, callbacks and checkpoints are in neither."""

    compile: float
    run: float


@dataclass(frozen=True)
class Result:
    """The result of `minimize`. `str(result)` is a summary.

    Example: `minimize`.
    """

    x: PyTree
    """The best x found."""
    y: PyTree
    """y at that x, close to y*(x)."""
    status: Status
    """How the run ended."""
    objective: float
    """f(x, y) + h(x)."""
    stationarity: float
    """A bound on dist(0, d(Phi + h)(x)) if `guaranteed`, otherwise an estimate of it, computed at the end of the run;
    infinity if that fails."""
    lower_residual: float
    """|grad_y g(x, y)|."""
    linear_residual: float | None
    """The relative residual of the adjoint solve; None if there is none (ITD)."""
    history: list[HistoryRow]
    """One row for each chunk; its stationarity is that of the iterate one step before."""
    counts: Counts
    """All oracle calls, including those of the certificate at the end. (`state.counts` excludes these: a resumed run
    counts as if it had never stopped.)"""
    seconds: Seconds
    """Compiling and running."""
    state: Snapshot
    """Pass it as `resume=` to continue from here."""
    hypergradient_error: float | None = None
    """The part of `stationarity` that is due to the inexact y and adjoint; None if the solver leaves no adjoint."""
    active_set_margin: float = float("inf")
    """With a lower regularizer: the distance to the next change of the active set of the lower level, relative to the
    size of y - s g_y. The certificate holds on this side of it; where it is 0, y* has a kink."""
    guaranteed: bool = False
    """Whether these two are bounds, from the constants given as `bounds`, or estimates."""
    certificate_rows: int = 0
    """Rows of each level from which `stationarity` was estimated; 0 if all were used, or if there are none."""
    standard_error: float = 0.0
    """Of that estimate; `stationarity` is two of these above it."""
    notes: tuple[str, ...] = ()
    """Further findings: which function is not finite at the start, or that lower is convex near y only."""

    @property
    def converged(self) -> bool:
        """Whether the tolerance was reached."""
        return self.status is Status.CONVERGED

    @property
    def steps(self) -> int:
        """The number of outer steps, including those before a resume."""
        return self.state.step

    @property
    def improved(self) -> bool:
        """Whether the objective is below that of the first row, which for the default solver is that of x0."""
        return bool(self.history) and self.objective < self.history[0]["objective"]

    @property
    def sentence(self) -> str:
        """The text of the status, and the notes."""
        return " ".join([self.status.value, *self.notes])

    def to_frame(self) -> "pandas.DataFrame":
        """The history as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.history)

    def __str__(self) -> str:
        adjoint = "" if self.linear_residual is None else f", adjoint residual {self.linear_residual:.1e}"
        kind = "at most " if self.guaranteed else ""
        some = f" (estimate from {self.certificate_rows} rows)" if self.certificate_rows else ""
        rows = f"{self.counts.rows} row derivatives, " if self.counts.rows else ""
        return (
            f"{self.status.name} after {self.state.step} steps: stationarity {kind}{self.stationarity:.1e}{some}, "
            f"objective {self.objective:.6g}, "
            f"lower residual {self.lower_residual:.1e}{adjoint}; {self.counts.total} oracle calls, "
            f"{rows}"
            f"{self.seconds.run:.2f} s (+ {self.seconds.compile:.2f} s compiling).\n{self.sentence}"
        )


class SolveWarning(UserWarning):
    """A run broke down, or may have started at a flat place; the best point that was found is returned."""


class SolveError(RuntimeError):
    """Raised if a run broke down and `throw=True`; `.result` holds the last finite iterate."""

    def __init__(self, result: Result):
        """Keep `result`; the text of its status is the message."""
        super().__init__(
            f"{result.sentence} (After {result.state.step} steps. Pass throw=False to get "
            "the last finite iterate instead of this error.)"
        )
        self.result = result
