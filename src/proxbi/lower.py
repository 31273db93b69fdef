"""Lower solvers: y close to argmin_y g(x, y), started at the y given."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _check, _tree
from proxbi._module import Module
from proxbi._tree import Scalar
from proxbi.problem import Counts, Problem, differentiable_grad_lower

if TYPE_CHECKING:
    import optax  # a third of the time that `import proxbi` would take: only who uses it waits for it


class LowerSolver(Module):
    """Anything with `solve(problem, x, y)`: the answer and the oracles it took.

    Example: `GradientDescent`.
    """

    @abstractmethod
    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """y close to argmin g(x, .), from the start `y`."""


class FixedLength(LowerSolver):
    """A lower solver that always takes `steps` (proximal) gradient steps: the kind that ITD can differentiate.

    A new one writes `init`, `step` and `answer`; each step calls `forward_backward` once.
    """

    if TYPE_CHECKING:  # mypy would put an abstract field first in the constructors of subclasses

        @property
        def steps(self) -> int:
            """How many; a static field in subclasses."""
    else:
        steps: eqx.AbstractVar[int]

    @abstractmethod
    def init(self, y: PyTree) -> PyTree:
        """What the first step needs, from the start `y`."""

    @abstractmethod
    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        """One step."""

    @abstractmethod
    def answer(self, carry: PyTree) -> PyTree:
        """The y in the carry."""

    def advance(self, problem: Problem, x: PyTree, carry: PyTree, steps: int) -> PyTree:
        """`steps` steps from `carry`."""
        return jax.lax.scan(lambda c, _: (self.step(problem, x, c), None), carry, length=steps)[0]

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """`steps` steps from `y`."""
        carry = self.advance(problem, x, self.init(y), self.steps)
        return self.answer(carry), self.cost(problem)

    def cost(self, problem: Problem) -> Counts:
        """Of all steps: a gradient each and, with a lower regularizer, a prox."""
        return Counts(grad_lower=self.steps, prox_lower=0 if problem.lower_regularizer is None else self.steps)


def forward_backward(problem: Problem, x: PyTree, y: PyTree, step_size: Any) -> PyTree:
    """prox_{t r_x}(y - t g_y(x, y)): a gradient step where the lower level has no regularizer."""
    forward = _tree.axpy(-step_size, differentiable_grad_lower(problem, x, y), y)
    return forward if problem.lower_regularizer is None else problem.lower_prox(x, forward, step_size)


def require_smooth(problem: Problem, name: str, instead: str) -> None:
    """Refuse a lower regularizer where only gradients are used."""
    if problem.lower_regularizer is not None:
        raise TypeError(f"{name} needs a smooth lower level, but this problem has a lower_regularizer: use {instead}.")


_WITH_PROX = "GradientDescent or Nesterov, which take proximal steps, or Newton"


class GradientDescent(FixedLength):
    r"""Plain gradient descent, $y^t = y^{t-1} - \alpha\nabla_y g(x, y^{t-1})$: `steps` steps of size `step_size`. With
    a lower regularizer, proximal gradient steps (ISTA).

    **Arguments:**

    - `step_size`: alpha, below 2 / L with L the largest curvature of g in y.
    - `steps`: how many.

    Reference: Y. Nesterov, *Introductory Lectures on Convex Optimization*, 2004, section 1.2.3.

    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = GradientDescent(0.25, steps=3).solve(scalar_problem(), x=jnp.array(1.0), y=jnp.array(0.0))
    >>> float(y), counts.grad_lower
    (0.875, 3)
    """

    step_size: _check.Number = eqx.field(converter=_check.as_float)
    steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check.positive("step_size", self.step_size)
        _check.positive_int("steps", self.steps)

    def init(self, y: PyTree) -> PyTree:
        return y

    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        return forward_backward(problem, x, carry, self.step_size)

    def answer(self, carry: PyTree) -> PyTree:
        return carry


class Nesterov(FixedLength):
    r"""Nesterov's accelerated gradient descent, lines 3 to 7 of the paper's Algorithm 1:

    $$u_t = y^{t-1} - \alpha\nabla_y g(x, y^{t-1}), \qquad y^t = u_t + \eta\,(u_t - u_{t-1}), \qquad u_0 = y^0 .$$

    With a lower regularizer, $u_t$ is a proximal gradient step (FISTA with constant momentum).

    **Arguments:**

    - `step_size`: alpha; the theory takes 1 / L.
    - `momentum`: eta; the theory takes (sqrt(kappa) - 1) / (sqrt(kappa) + 1) < 1.
    - `steps`: T.
    - `form`: `"algorithm"` extrapolates already in the first step, as Algorithm 1 is written; `"appendix"` starts
      with the plain step y^1 = u_1 that the proofs use (equation (y1_def) there). Later steps are the same.

    Reference: Y. Nesterov, *Introductory Lectures on Convex Optimization*, 2004, section 2.2.

    >>> from proxbi.analytic import scalar_problem
    >>> solver = Nesterov(0.25, momentum=0.1, steps=10)
    >>> y, counts = solver.solve(scalar_problem(), x=jnp.array(1.0), y=jnp.array(0.0))
    >>> round(float(y), 3), counts.grad_lower
    (1.0, 10)
    """

    step_size: _check.Number = eqx.field(converter=_check.as_float)
    momentum: _check.Number = eqx.field(converter=_check.as_float)
    steps: int = eqx.field(static=True)
    form: Literal["algorithm", "appendix"] = eqx.field(static=True, default="algorithm")

    def __check_init__(self) -> None:
        _check.positive("step_size", self.step_size)
        _check.non_negative("momentum", self.momentum)
        _check.positive_int("steps", self.steps)
        if self.form not in ("algorithm", "appendix"):
            raise ValueError(f'form must be "algorithm" or "appendix", got {self.form!r}.')

    def init(self, y: PyTree) -> PyTree:
        plain_first_step = jnp.asarray(self.form == "appendix")
        return y, y, plain_first_step

    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        y, previous, plain = carry
        u = forward_backward(problem, x, y, self.step_size)
        momentum = jnp.where(plain, 0, self.momentum)
        return _tree.axpy(momentum, _tree.subtract(u, previous), u), u, jnp.asarray(False)

    def answer(self, carry: PyTree) -> PyTree:
        return carry[0]


class Optax(FixedLength):
    """Any first-order optax optimizer for `steps` steps, restarted at every solve.

    The numbers inside an optax optimizer are constants of the compiled program: changing one compiles again.

    **Arguments:**

    - `optimizer`: such as `optax.adam(0.1)`.
    - `steps`: how many.

    >>> import optax
    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = Optax(optax.sgd(0.25), steps=3).solve(scalar_problem(), x=jnp.array(1.0), y=jnp.array(0.0))
    >>> float(y), counts.grad_lower
    (0.875, 3)
    """

    optimizer: "optax.GradientTransformation" = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        import optax

        if not isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(f"optimizer must be an optax GradientTransformation, got {type(self.optimizer).__name__}.")
        _check.positive_int("steps", self.steps)

    def init(self, y: PyTree) -> PyTree:
        return y, self.optimizer.init(y)

    def step(self, problem: Problem, x: PyTree, carry: PyTree) -> PyTree:
        import optax

        require_smooth(problem, "Optax", _WITH_PROX)
        y, state = carry
        updates, state = self.optimizer.update(differentiable_grad_lower(problem, x, y), state, y)
        return optax.apply_updates(y, updates), state

    def answer(self, carry: PyTree) -> PyTree:
        return carry[0]


class Descent(NamedTuple):
    """Where an accelerated descent ended: at the point with the smallest gradient it saw."""

    y: PyTree
    gradient: PyTree
    """At y."""
    residual: Scalar
    """Its norm."""
    step_size: Scalar
    """The step size in use there: what the next descent may start with."""
    flatness: Scalar
    """The largest |s|^2 / <q, s> met, an estimate of 1 / mu from below: `flatness * residual` estimates |y - y*|."""
    calls: Int[Array, ""]
    """Gradients taken."""


class _Descending(NamedTuple):
    z: PyTree
    gradient: PyTree
    u: PyTree
    age: Scalar  # steps since the momentum was last zero
    step_size: Scalar
    flatness: Scalar
    best: Descent  # its calls are those it took to get there
    calls: Int[Array, ""]
    done: Bool[Array, ""]


# Nesterov's method for a convex phi with gradients as the only oracle, one for each step:
#
#     u' = z - t phi'(z),     z' = u' + k / (k + 3) (u' - u),     k = steps since the last restart.
#
# Neither the largest curvature L nor the least is known.
# - t: for s = z' - z and q = phi'(z') - phi'(z), a curvature of at most L in between implies <q, s> >= |q|^2 / L. So
#   t > <q, s> / |q|^2 proves that t > 1/L: z' is thrown away, and that quotient, which is at least 1/L, is the next t.
#   Directions of large curvature weigh most in it: it sees them before they have grown to harm. (They do no harm while
#   |q| is far below |phi'|, and q tells nothing about them when it is a rounding error: then t is left alone.) A test
#   of values would see nothing but rounding once t |phi'|^2 falls below eps |phi|, long before the gradients do.
# - k: momentum that points uphill, <phi'(z), u' - u> > 0, starts afresh (O'Donoghue and Candes, 2015): as fast as with
#   the best momentum for the least curvature, which so need not be known. There t may grow: the curvature may have
#   fallen on the way, and a t that proves too long costs least now.
def accelerate(
    gradient: Callable[[PyTree], PyTree],
    y: PyTree,
    *,
    tol: Any = 0.0,
    distance: Any = 0.0,
    step_size: Any = 0.0,
    flatness: Any = 0.0,
    max_steps: int = 10_000,
) -> Descent:
    """Descend from y until the minimiser is about as near as `distance`, or as `tol` times the size of y.

    The size is the larger of |y| there and at the start; how near it is, the flatness says, the largest met or the one
    given. Rounding ends it too: where a step is in the last digits of y, or as many gradients as led to the smallest
    one, and 50 more, have found no smaller one. A `step_size` of 0 is not known: one more gradient, a step of
    |y| / 1000 away (from y = 0: of length 1), tells a first one.
    """
    first = gradient(y)
    residual, length = _tree.norm(first), _tree.norm(y)
    eps = float(jnp.finfo(residual.dtype).eps)
    tol, distance, step_size, flatness = (jnp.asarray(a, residual.dtype) for a in (tol, distance, step_size, flatness))

    def probed() -> tuple[Scalar, Int[Array, ""]]:
        short = jnp.where(length > 0, 1e-3 * length, 1) / jnp.where(residual > 0, residual, 1)
        beyond = gradient(_tree.axpy(-short, first, y))
        allowed = _longest_step(_tree.scale(-short, first), _tree.subtract(beyond, first))
        return jnp.where(jnp.isfinite(allowed) & (allowed > 0), allowed, short), jnp.int32(2)

    step_size, calls = jax.lax.cond(step_size > 0, lambda: (_GROWTH * step_size, jnp.int32(1)), probed)

    def near(size: Scalar, at: PyTree, step_size: Scalar, flatness: Scalar) -> Bool[Array, ""]:
        scale = jnp.maximum(_tree.norm(at), length)
        rounded = step_size * size <= 2 * eps * scale
        return rounded | (jnp.maximum(flatness, step_size) * size <= jnp.maximum(distance, tol * scale))

    def advance(at: _Descending) -> _Descending:
        u = _tree.axpy(-at.step_size, at.gradient, at.z)
        uphill = _tree.dot(at.gradient, _tree.subtract(u, at.u)) > 0
        age = jnp.where(uphill, 0, at.age)
        z = _tree.axpy(age / (age + 3), _tree.subtract(u, at.u), u)
        there = gradient(z)
        size, calls = _tree.norm(there), at.calls + 1

        s, q = _tree.subtract(z, at.z), _tree.subtract(there, at.gradient)
        allowed, change = _longest_step(s, q), _tree.norm(q)
        rounding = 16 * eps * _tree.norm(z) / at.step_size
        # a tenth of slack: the step that a quadratic allows may be the present one, and rounding must not decide
        good = ((at.step_size <= 1.1 * allowed) | (change <= jnp.maximum(0.1 * size, rounding))) & jnp.isfinite(size)
        shorter = at.step_size * jnp.clip(jnp.where(jnp.isfinite(allowed), allowed / at.step_size, 0), 0.1, 0.8)
        longer = jnp.where(uphill, _GROWTH, 1) * at.step_size
        flat = _longest_step(q, s)
        seen = (change > rounding) & jnp.isfinite(flat) & (flat > 0)
        flatness = jnp.where(seen, jnp.maximum(at.flatness, 1 / jnp.where(seen, flat, 1)), at.flatness)

        found = Descent(z, there, size, at.step_size, flatness, calls)
        best = _tree.where(size < at.best.residual, found, at.best)
        moved = _Descending(z, there, u, age + 1, longer, flatness, best, calls, at.done)
        stayed = at._replace(u=at.z, age=jnp.zeros_like(age), step_size=shorter, best=best, calls=calls)
        fruitless = calls > 2 * best.calls + 50
        return _tree.where(good, moved, stayed)._replace(done=near(size, z, at.step_size, flatness) | fruitless)

    best = Descent(y, first, residual, step_size, flatness, calls)
    done = near(residual, y, step_size, flatness) | ~jnp.isfinite(residual)
    start = _Descending(y, first, y, jnp.zeros_like(residual), step_size, flatness, best, calls, done)
    last = jax.lax.while_loop(lambda at: ~at.done & (at.calls < max_steps), advance, start)
    return last.best._replace(calls=last.calls, flatness=last.flatness)


_GROWTH = 1.2


def _longest_step(s: PyTree, q: PyTree) -> Scalar:
    """<q, s> / |q|^2, infinite for q = 0; taken with q / |q|, whose square neither overflows nor vanishes."""
    size = _tree.norm(q)
    unit = jnp.where(size > 0, size, 1)
    return jnp.where(size > 0, _tree.dot(_tree.scale(1 / unit, q), s) / unit, jnp.inf)


class AcceleratedGradient(LowerSolver):
    r"""Nesterov's method with automatic step size and momentum: no L, no mu to give.

    $$u_{t+1} = z_t - \alpha\nabla_y g(x, z_t), \qquad z_{t+1} = u_{t+1} + \tfrac{k}{k+3}\,(u_{t+1} - u_t)$$

    with $\alpha$ cut wherever two gradients prove it longer than 1/L, and k counted from the last restart: where the
    momentum points uphill. It stops when y is estimated to be right to `tol`,

    $$|\nabla_y g(x, z)| / \hat\mu \le tol\,\max(|z|, |y^0|), \qquad
    \hat\mu = \min_t \langle q_t, s_t\rangle / |s_t|^2,$$

    with $s_t, q_t$ the steps and the changes of the gradient along them: $\hat\mu$ is the least curvature met and not
    below mu. The rule means the same in all units of y and g. Where rounding comes first, it stops there.

    **Arguments:**

    - `tol`: the error of y to stop at, relative to its size.
    - `max_steps`: the maximal number of gradients.

    `descend` does the same with a step size to start from, and says which one it ended with.

    Reference: B. O'Donoghue, E. Candes, "Adaptive restart for accelerated gradient schemes", 2015.

    >>> from proxbi.analytic import scalar_problem
    >>> y, counts = AcceleratedGradient(tol=1e-3).solve(scalar_problem(), x=jnp.array(1.0), y=jnp.array(5.0))
    >>> print(y.round(2), int(counts.grad_lower))
    1.0 3
    """

    tol: _check.Number = eqx.field(converter=_check.as_float, default=1e-8)
    max_steps: int = eqx.field(static=True, default=10_000)

    def __check_init__(self) -> None:
        _check.non_negative("tol", self.tol)
        _check.positive_int("max_steps", self.max_steps)

    def solve(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Counts]:
        """From `y`, with a step size found there."""
        found = self.descend(problem, x, y)
        return found.y, Counts(grad_lower=found.calls)

    def descend(self, problem: Problem, x: PyTree, y: PyTree, step_size: Any = 0.0) -> Descent:
        """From `y`, with the `step_size` that an earlier descent ended with (0: none is known)."""
        require_smooth(problem, "AcceleratedGradient", _WITH_PROX)
        return accelerate(
            lambda at: problem.grad_lower(x, at), y, tol=self.tol, step_size=step_size, max_steps=self.max_steps
        )
