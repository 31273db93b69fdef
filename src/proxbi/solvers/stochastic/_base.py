r"""What all solvers on batches share: how rows are drawn, how a step in y, v and x is computed from estimates, and the
certificate at the end of a run.

The single loop moves y, v and x at once, each along an estimate of its own equation:

    y+ = y - a D_y,     D_y ~ g_y                    (the lower level)
    v+ = v - a D_v,     D_v ~ g_yy v - f_y           (the adjoint equation)
    x+ = prox_{b h}(x - b D_x),   D_x ~ f_x - g_xy v

All three are computed from five means over rows, `Pieces`: three over lower rows and two over upper rows. Solvers
differ in how they estimate these means. The prox leaves s = (x - b D_x - x+) / b in dh(x+).
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.certificate import Bounds, Certificate, Known, of_evaluation
from proxbi.hypergradient import Evaluation, Implicit, Outcome
from proxbi.hypergradient._controlled import ratio
from proxbi.lower import require_smooth
from proxbi.problem import Counts, Problem, in_blocks, on_batches
from proxbi.rows import ArrayRows, Rows, Sampling, seed_of
from proxbi.rows._batches import LEVELS, Level
from proxbi.solvers._base import Info, Solver
from proxbi.solvers.stochastic import _scale

if TYPE_CHECKING:
    import optax

BLOCK = 4096  # rows that are looked at together where all are: a few MB of scores and activations
_BATCH = 64  # rows, where none are given; fewer keep a core no busier
_ROUGH, _FINE = 0.1, 1e-3  # accuracies of the two hypergradients that a certificate compares
_LEVEL_SEEDS: dict[Level, int] = {"upper": 0, "lower": 0x5BD1E995}  # so that both levels have orders of their own


class Draws(NamedTuple):
    """Where a run is in its sequence of batches."""

    number: Int[Array, ""]
    """Batches drawn so far."""
    seed: Array
    """Of all of them; taken from the key of the first step."""

    @classmethod
    def first(cls) -> "Draws":
        return cls(jnp.int32(0), jnp.zeros(2, jnp.uint32))

    def begun(self, key: PRNGKeyArray) -> "Draws":
        """With the seed of this run."""
        return self._replace(seed=jnp.where(self.number == 0, seed_of(key), self.seed))

    def next(self) -> "Draws":
        return self._replace(number=self.number + 1)


class Owed(NamedTuple):
    """Calls made before the first step. The first step counts them."""

    counts: Counts

    def paid(self) -> "Owed":
        return Owed(jax.tree.map(jnp.zeros_like, self.counts))


class OnBatches(Solver):
    """A solver that draws a batch of rows of each level in each step. On a problem without `Rows` the batch is
    all of the data.

    Examples: `ProxSABA`, `Minibatch`.
    """

    batch: int | None = eqx.field(static=True, default=None, kw_only=True)
    """Rows in a batch of each level; None: 64, or all of a level that has fewer."""
    sampling: Literal["epochs", "replacement"] = eqx.field(static=True, default="epochs", kw_only=True)
    """How rows are drawn: each once in an epoch, or with replacement."""
    certificate_rows: int | None = eqx.field(static=True, default=None, kw_only=True)
    """None: the certificate solves the lower level on all rows. A number: it uses the current y and v and so many rows
    of each level, with a standard error unless these are all rows; for lower levels that are not convex."""

    def __check_init__(self) -> None:
        for name in ("batch", "certificate_rows"):
            if getattr(self, name) is not None:
                _check.positive_int(name, getattr(self, name))
        if self.sampling not in ("epochs", "replacement"):
            raise ValueError(f'sampling must be "epochs" or "replacement", got {self.sampling!r}.')

    @property
    def caution(self) -> float:
        """The fraction of the step sizes derived in `_scale.py` that this solver takes, for y, v and x alike."""
        return 1.0

    @property
    def reads_all_rows(self) -> bool:
        """Whether steps need rows beyond their batch, so that rows must be on the device."""
        return False

    @property
    def reports_every(self) -> int:
        return 100  # an objective on all rows takes as long as many steps

    def rows_of(self, data: Rows, level: Level) -> Sampling:
        """How batches of a level are drawn."""
        count = len(getattr(data, level))
        if self.batch is not None and self.batch > count:
            raise ValueError(f"batch is {self.batch} rows, but {level} has only {count}.")
        return Sampling(self.batch or min(_BATCH, count), count, self.sampling)

    def rows_of_step(self, problem: Problem) -> int:
        """About how many derivatives of rows a step computes: those of one `pieces` on a batch."""
        if not isinstance(problem.data, Rows):
            return 1
        upper, lower = (self.rows_of(problem.data, level).batch for level in LEVELS)
        return upper + 3 * lower

    def index(self, data: Rows, level: Level, draws: Draws) -> Int[Array, " batch"]:
        """The rows of the present batch."""
        return self.rows_of(data, level).index(self.level_seed(level, draws.seed), draws.number)

    def level_seed(self, level: Level, seed: Array) -> Array:
        """The seed for the batches of a level."""
        return seed ^ jnp.uint32(_LEVEL_SEEDS[level])

    def drawn(self, problem: Problem, draws: Draws) -> Problem:
        """The problem on the present batch."""
        data = problem.data
        if not isinstance(data, Rows):
            return problem
        on_device = [level for level in LEVELS if isinstance(getattr(data, level), ArrayRows)]
        return on_batches(problem, **{level: data.batch(level, self.index(data, level, draws)) for level in on_device})


class Judged(NamedTuple):
    """A certificate from means over rows."""

    slope: PyTree
    """d + s."""
    lower_residual: Scalar
    linear_residual: Scalar | None


class Linear(OnBatches):
    """A solver whose hypergradient is linear in means over rows, so that it can be summed block by block."""

    @abstractmethod
    def lower_means(self, problem: Problem, state: Any) -> PyTree:
        """Means over the lower rows of `problem` at the point of `state`."""

    @abstractmethod
    def upper_means(self, problem: Problem, state: Any) -> PyTree:
        """Means over its upper rows."""

    @abstractmethod
    def judged(self, state: Any, lower: PyTree, upper: PyTree) -> Judged:
        """The certificate from both."""

    @property
    @abstractmethod
    def calls(self) -> Counts:
        """The cost of both."""


class Pieces(NamedTuple):
    """The five means from which a step is computed."""

    lower: tuple[PyTree, PyTree, PyTree]
    """g_y, g_yy v and g_xy v."""
    upper: tuple[PyTree, PyTree]
    """f_x and f_y."""


CALLS = Counts(grad_lower=1, hvp=1, cross=1, grad_upper=1)  # of one `pieces`


def pieces(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> Pieces:
    """The five means over the rows of `problem`."""
    return Pieces(_lower_pieces(problem, x, y, v), problem.grad_upper(x, y))


def _lower_pieces(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    return problem.grad_lower(x, y), problem.hvp(x, y)(v), problem.cross(x, y)(v)


class LoopState(NamedTuple):
    """The three variables, the memory of estimates and optimizers, the step sizes, and the position in the sequence of
    batches.
    """

    x: PyTree
    y: PyTree
    v: PyTree
    subgradient: PyTree
    average: PyTree
    """Of D_x."""
    memory: PyTree
    optimizer: PyTree
    scale: _scale.Scale
    draws: Draws
    owed: Owed


class SingleLoop(Linear):
    """Subclasses estimate the five means. `remembered` makes their first memory, `estimate` the means and the next
    memory.
    """

    step_size: _check.Number = eqx.field(converter=_check.optional_float, default=None)
    """b; None: learned at the start, and adjusted."""
    lower_step_size: _check.Number = eqx.field(converter=_check.optional_float, default=None)
    """a; None: learned at the start."""
    damping: _check.Number = eqx.field(converter=_check.as_float, default=0.0, kw_only=True)
    """Added to g_yy in the adjoint equation: for lower levels that are not strongly convex."""
    half_life: _check.Number = eqx.field(converter=_check.optional_float, default=None, kw_only=True)
    """Steps after which both step sizes have halved, as 1 / sqrt(1 + 3 t / half_life); None: never."""
    optimizer: "optax.GradientTransformation | None" = eqx.field(static=True, default=None, kw_only=True)
    """Of optax, for y; None: plain steps of `lower_step_size`."""
    relearn: bool = eqx.field(static=True, default=True, kw_only=True)
    """Whether curvatures that bound step sizes are looked at again as x moves. Under `vmap` every step would do that:
    `minimize_many` and `sweep` switch it off."""

    def __check_init__(self) -> None:
        for name in ("step_size", "lower_step_size", "half_life"):
            if getattr(self, name) is not None:
                _check.positive(name, getattr(self, name))
        _check.non_negative("damping", self.damping)

    @property
    def momentum(self) -> Any:
        """The fraction of the last direction of x that the next one keeps."""
        return 0.0

    @abstractmethod
    def remembered(self, problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> PyTree:
        """What the first estimate needs."""

    @abstractmethod
    def estimate(self, problem: Problem, state: LoopState, key: PRNGKeyArray) -> tuple[Pieces, PyTree, Counts]:
        """The five means at the point of `state`, the next memory, and the cost, with rows."""

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> LoopState:
        require_smooth(problem, type(self).__name__, "the default solver")
        v = _tree.zeros_like(y)
        scale, counts = _scale.learned(self, problem, x, y)
        optimizer = None if self.optimizer is None else self.optimizer.init(y)
        memory, zero = self.remembered(problem, x, y, v), _tree.zeros_like(x)
        return LoopState(x, y, v, zero, zero, memory, optimizer, scale, Draws.first(), Owed(counts))

    def step(self, problem: Problem, state: LoopState, key: PRNGKeyArray) -> tuple[LoopState, Info]:
        state, learning = self._scaled(problem, state._replace(draws=state.draws.begun(key)))
        found, memory, counts = self.estimate(problem, state, key)
        (g_y, product, cross), (f_x, f_y) = found
        adjoint = _tree.axpy(self.damping, state.v, _tree.subtract(product, f_y))
        direction = self._averaged(state, _tree.subtract(f_x, cross))
        stiffness = ratio(_tree.norm(product), _tree.norm(state.v))
        met = ratio(_tree.dot(state.v, product), _tree.dot(state.v, state.v), otherwise=float("inf"))
        fading = self._fading(state)
        rates = state.scale.faded(fading).within(_tree.norm(direction)).no_stiffer_than(stiffness / self.caution)
        forward = _tree.axpy(-rates.outer, direction, state.x)
        waits, step = rates.outer == 0, jnp.where(rates.outer == 0, 1, rates.outer)
        x = _tree.where(waits, state.x, problem.regularizer.prox(forward, step))
        y, optimizer = self._lower_step(state, g_y, rates.lower)
        moved = state._replace(
            x=x,
            y=y,
            v=_tree.axpy(-rates.adjoint, adjoint, state.v),
            subgradient=_tree.scale(1 / step, _tree.subtract(forward, x)),
            average=direction,
            memory=memory,
            optimizer=optimizer,
            scale=state.scale.following(met).adjusted(x, direction, rates.outer / fading, state.draws.number + 1),
            draws=state.draws.next(),
            owed=state.owed.paid(),
        )
        info = Info(
            stationarity=_tree.norm(_tree.axpy(1, state.subgradient, direction)),
            lower_residual=_tree.norm(g_y),
            linear=None,
            counts=jax.tree.map(jnp.int32, counts + learning + state.owed.counts + Counts(prox=1)),
        )
        return moved, info

    def certificate(
        self, problem: Problem, before: Any, after: Any, info: Info, bounds: Bounds | None = None
    ) -> Certificate:
        """Without rows, the stationarity that a step reports. With rows, the error-controlled hypergradient on all of
        them.
        """
        if not isinstance(problem.data, Rows):
            return super().certificate(problem, before, after, info, bounds)
        return _on_all_rows(problem, before)

    def lower_means(self, problem: Problem, state: LoopState) -> PyTree:
        return _lower_pieces(problem, state.x, state.y, state.v)

    def upper_means(self, problem: Problem, state: LoopState) -> PyTree:
        return problem.grad_upper(state.x, state.y)

    @property
    def calls(self) -> Counts:
        return CALLS

    def judged(self, state: LoopState, lower: PyTree, upper: PyTree) -> Judged:
        (g_y, product, cross), (f_x, f_y) = lower, upper
        slope = _tree.axpy(1, state.subgradient, _tree.subtract(f_x, cross))
        adjoint = ratio(_tree.norm(_tree.subtract(product, f_y)), _tree.norm(f_y))
        return Judged(slope, _tree.norm(g_y), adjoint)

    def _averaged(self, state: LoopState, direction: PyTree) -> PyTree:
        """The moving average of directions, started at the first one."""
        keep = jnp.where(state.draws.number == 0, 0.0, self.momentum)
        return _tree.axpy(keep, _tree.subtract(state.average, direction), direction)

    def _looks_again(self, problem: Problem) -> bool:
        """Whether a step has rows to measure curvature on."""
        on_device = isinstance(problem.data, Rows) and all(
            isinstance(getattr(problem.data, level), ArrayRows) for level in LEVELS
        )
        return self.relearn and on_device

    def _scaled(self, problem: Problem, state: LoopState) -> tuple[LoopState, Counts]:
        """With the bounds on step sizes measured again if x has moved far, and the cost of that."""
        none, scale = jax.tree.map(jnp.int32, Counts()), state.scale
        point, number = (state.x, state.y, state.v), state.draws.number
        if scale.looked is None or not self._looks_again(problem):
            return state, none
        gone = _tree.norm(_tree.subtract(state.x, scale.looked.place)) > _scale.radius_at(state.x)
        scale, cost = jax.lax.cond(
            gone & (number >= scale.looked.until),
            lambda: _scale.looked_at(self, problem, scale, point, number),
            lambda: (scale, none),
        )
        return state._replace(scale=scale), cost

    def _fading(self, state: LoopState) -> Scalar:
        """The fraction of the step sizes that remains."""
        if self.half_life is None:
            return jnp.ones_like(state.scale.outer)
        half_life = jnp.asarray(self.half_life, state.scale.outer.dtype)
        return 1 / jnp.sqrt(1 + 3 * state.draws.number.astype(half_life.dtype) / half_life)  # a half at t = half_life

    def _lower_step(self, state: LoopState, g_y: PyTree, rate: Scalar) -> tuple[PyTree, PyTree]:
        if self.optimizer is None:
            return _tree.axpy(-rate, g_y, state.y), None
        updates, optimizer = self.optimizer.update(g_y, state.optimizer, state.y)
        return jax.tree.map(lambda y, u: y + u.astype(y.dtype), state.y, updates), optimizer


def _ends(scanned: tuple[Evaluation, Evaluation]) -> tuple[Evaluation, list[Evaluation]]:
    """The last evaluation, and those before each."""
    last, before = scanned
    return last, [jax.tree.map(lambda leaf, k=k: leaf[k], before) for k in range(2)]


def _on_all_rows(problem: Problem, state: Any) -> Certificate:
    """The certificate from two hypergradients on all rows, the second far more accurate than the first."""
    whole, solve = in_blocks(problem, BLOCK), Implicit()
    start = solve.init(whole, state.x, state.y)._replace(v=state.v)

    def sharpened(last: Evaluation, accuracy: Scalar) -> tuple[Evaluation, Evaluation]:
        found = solve(whole, state.x, last, state.subgradient, accuracy)
        found = jax.tree.map(lambda new, old: new.astype(old.dtype), found, last)
        return found, last

    # One loop rather than two calls: the hypergradient is the larger part of the program, and is compiled once.
    found, (_, rough) = _ends(jax.lax.scan(sharpened, start, jnp.asarray([_ROUGH, _FINE], start.error.dtype)))
    length = jnp.maximum(_tree.norm(state.x), 1)
    moved = state.draws.number > 0
    known = Known(state.x, state.subgradient, moved, found.outcome <= Outcome.ROUGH, length, jnp.zeros_like(length))
    certificate = of_evaluation(whole, known, rough, found, None)
    return certificate._replace(counts=problem.with_rows(certificate.counts + rough.counts + found.counts))
