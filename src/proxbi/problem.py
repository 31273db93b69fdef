"""The bilevel problem and its oracles.

    min_x  f(x, y*(x)) + h(x)     with     y*(x) = argmin_y g(x, y) + r_x(y)                     (P)

Algorithms use f and g only through the oracles of `Problem`, and report in `Counts` how often they called each.
"""

import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from proxbi import _tree
from proxbi._functions import convex, lower_regularizer_of, objective_of, written
from proxbi._place import HERE, Place
from proxbi._tree import Scalar
from proxbi.regularizers import Regularizer, Zero
from proxbi.rows import Batch, Rows, mean_over_blocks


class Counts(eqx.Module):
    """How often each oracle was called. `a + b` adds; `total` counts every kind equally.

    >>> (Counts(hvp=3) + Counts(hvp=1, prox=1)).total
    5
    """

    grad_lower: Any = 0
    grad_upper: Any = 0
    hvp: Any = 0
    cross: Any = 0
    prox: Any = 0
    value_upper: Any = 0
    value_lower: Any = 0
    grad_lower_x: Any = 0
    prox_lower: Any = 0
    """Proxes of the lower regularizer, including those evaluated for their derivative; products with that derivative
    are not counted."""
    rows: Any = 0
    """Derivatives of single rows: a gradient, Hessian product or cross product of a batch counts once for each of its
    rows. 0 if data are not `Rows`; not part of the total."""

    def __add__(self, other: "Counts") -> "Counts":
        return jax.tree.map(operator.add, self, other)

    @property
    def total(self) -> Any:
        """All calls of all kinds."""
        return sum(count for name, count in vars(self).items() if name != "rows")

    def as_dict(self) -> dict[str, int]:
        """The counts by name, as Python integers."""
        return {name: int(count) for name, count in vars(self).items()}


class Problem(eqx.Module):
    r"""The bilevel problem $\min_x f(x, y^*(x)) + h(x)$ with $y^*(x) = \arg\min_y g(x, y) + r_x(y)$.

    **Arguments:**

    - `upper`: f, a function `upper(x, y, data) -> scalar` (or `upper(x, y)`).
    - `lower`: g, a function `lower(x, y, data) -> scalar` (or `lower(x, y)`), strongly convex in y.
    - `regularizer`: h, any of `proxbi.regularizers`; by default h = 0.
    - `data`: a pytree of arrays that is passed to both functions. Pass large arrays here instead of closing over them:
      an array in a closure becomes a constant of the compiled program. With `Rows(upper=..., lower=...)` each function
      gets a `Batch` of its own rows: all of them, or those that a stochastic solver drew.
    - `lower_regularizer`: r, a convex one of `proxbi.regularizers`, or a function of x (or of x and data) that returns
      one: `lambda x: L1(jnp.exp(x))` is a Lasso with a penalty for each coefficient. By default r = 0.

    x and y are any pytrees of floating point arrays. The oracles are computed by automatic differentiation. If you have
    a faster formula for one of them, subclass `Problem` and override it.

    >>> import jax.numpy as jnp
    >>> from proxbi import L1
    >>> problem = Problem(lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: jnp.sum((y - x) ** 2), L1(0.1))
    >>> x, y = jnp.ones(2), jnp.zeros(2)
    >>> print(problem.grad_lower(x, y))
    [-2. -2.]
    >>> print(problem.hvp(x, y)(jnp.array([1.0, 0.0])))
    [2. 0.]
    >>> print(problem.cross(x, y)(jnp.array([1.0, 0.0])))
    [-2. -0.]
    """

    upper: Callable[..., Scalar] = eqx.field(converter=lambda f: objective_of("upper", f))
    lower: Callable[..., Scalar] = eqx.field(converter=lambda g: objective_of("lower", g))
    regularizer: Regularizer = Zero()
    data: PyTree = None
    lower_regularizer: Any = eqx.field(converter=lambda r: lower_regularizer_of(r), default=None, kw_only=True)

    def __check_init__(self) -> None:
        if not isinstance(self.regularizer, Regularizer):
            given = type(self.regularizer).__name__
            raise TypeError(
                f"regularizer must be a proxbi Regularizer such as L1(0.1), got {given}. Pass data as data=."
            )
        if [getattr(written(level), "__name__", "") for level in (self.upper, self.lower)] == ["lower", "upper"]:
            raise TypeError(
                "upper and lower are swapped: Problem(upper, lower) was given functions named the other way."
            )

    @property
    def place(self) -> Place:
        """Where x, y and the rows are."""
        return HERE

    @property
    def lower_moves(self) -> bool:
        """Whether r depends on x."""
        return self.lower_regularizer is not None and not isinstance(self.lower_regularizer, Regularizer)

    @property
    def upper_data(self) -> PyTree:
        """The data that upper is called with."""
        return self.data.level("upper") if isinstance(self.data, Rows) else self.data

    @property
    def lower_data(self) -> PyTree:
        """The data that lower is called with."""
        return self.data.level("lower") if isinstance(self.data, Rows) else self.data

    def check_start(self, x: PyTree, y: PyTree) -> None:
        """Raise an error for data that do not fit this start. Solvers' drivers call it before anything is compiled."""

    def row_numbers(self) -> tuple[int, int]:
        """The number of rows of upper and of lower; 0 if data are not `Rows`."""
        return (len(self.upper_data), len(self.lower_data)) if isinstance(self.data, Rows) else (0, 0)

    def with_rows(self, counts: "Counts") -> "Counts":
        """`counts` of calls on all rows, with `rows` filled in."""
        upper, lower = self.row_numbers()
        calls = counts.grad_lower + counts.hvp + counts.cross + counts.grad_lower_x
        return eqx.tree_at(lambda c: c.rows, counts, counts.grad_upper * upper + calls * lower)

    def lower_regularizer_at(self, x: PyTree) -> Regularizer:
        """r_x."""
        r = self.lower_regularizer(x, self.lower_data) if self.lower_moves else self.lower_regularizer
        return Zero() if r is None else convex(r)

    def lower_prox(self, x: PyTree, y: PyTree, step: Any) -> PyTree:
        """prox_{step r_x}(y)."""
        return self.lower_regularizer_at(x).prox(y, step)

    def lower_penalty(self, x: PyTree, y: PyTree) -> Scalar:
        """r_x(y)."""
        return self.lower_regularizer_at(x).value(y)

    def value_upper(self, x: PyTree, y: PyTree) -> Scalar:
        """f(x, y)."""
        return self.upper(x, y, self.upper_data)

    def value_lower(self, x: PyTree, y: PyTree) -> Scalar:
        """g(x, y)."""
        return self.lower(x, y, self.lower_data)

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """The pair (f_x, f_y) at (x, y)."""
        return jax.grad(self.upper, argnums=(0, 1))(x, y, self.upper_data)

    def value_and_grad_upper(self, x: PyTree, y: PyTree) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        """f and (f_x, f_y) at (x, y): the value comes with the gradient, for which it has to be computed anyway."""
        if type(self).grad_upper is not Problem.grad_upper:  # a structured problem, with a gradient of its own
            return self.value_upper(x, y), self.grad_upper(x, y)
        return jax.value_and_grad(self.upper, argnums=(0, 1))(x, y, self.upper_data)

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        """g_y at (x, y)."""
        return jax.grad(self.lower, argnums=1)(x, y, self.lower_data)

    def value_and_grad_lower(self, x: PyTree, y: PyTree) -> tuple[Scalar, PyTree]:
        """g and g_y at (x, y): one call, as the value comes with the gradient."""
        if type(self).grad_lower is not Problem.grad_lower:  # a structured problem, with a gradient of its own
            return self.value_lower(x, y), self.grad_lower(x, y)
        return jax.value_and_grad(self.lower, argnums=1)(x, y, self.lower_data)

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        """g_x at (x, y)."""
        return jax.grad(self.lower, argnums=0)(x, y, self.lower_data)

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        """The map v -> g_yy v at (x, y), linearised once to be applied many times."""
        # jvp of the gradient: forward over reverse needs less memory than reverse over reverse.
        return jax.linearize(lambda at: jax.grad(self.lower, argnums=1)(x, at, self.lower_data), y)[1]

    def preconditioner(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree] | None:
        """The map r -> M r with M close to the inverse of g_yy at (x, y), symmetric and positive definite.

        Override this if you have one; with None `AdaptiveProxBiO` learns its own. It is not an oracle: its calls are
        not counted, and a bad one costs steps but no accuracy.
        """
        return None

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        """The map v -> g_xy v at (x, y), from y-vectors to x-vectors."""
        # g_xy v is the derivative of g_x(x, .) along v, by the symmetry of second derivatives: again a jvp of a
        # gradient.
        return jax.linearize(lambda at: jax.grad(self.lower, argnums=0)(x, at, self.lower_data), y)[1]


class InBlocks(Problem):
    """A problem on `Rows` whose oracles go through all rows in blocks: the same numbers up to rounding, in the memory
    of one block. Made by `in_blocks`.
    """

    block: int = eqx.field(static=True, default=4096, kw_only=True)

    def value_upper(self, x: PyTree, y: PyTree) -> Scalar:
        return self._upper(lambda part: part.value_upper(x, y))

    def value_lower(self, x: PyTree, y: PyTree) -> Scalar:
        return self._lower(lambda part: part.value_lower(x, y))

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return self._upper(lambda part: part.grad_upper(x, y))

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        return self._lower(lambda part: part.grad_lower(x, y))

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        return self._lower(lambda part: part.grad_lower_x(x, y))

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return lambda v: self._lower(lambda part: part.hvp(x, y)(v))

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return lambda v: self._lower(lambda part: part.cross(x, y)(v))

    def _upper(self, oracle: Callable[[Problem], Any]) -> Any:
        return mean_over_blocks(lambda rows: oracle(self._part("upper", rows)), self.upper_data, self.block)

    def _lower(self, oracle: Callable[[Problem], Any]) -> Any:
        return mean_over_blocks(lambda rows: oracle(self._part("lower", rows)), self.lower_data, self.block)

    def _part(self, level: str, rows: Batch) -> Problem:
        data = self.data.having(**{level: rows})
        return Problem(self.upper, self.lower, self.regularizer, data, lower_regularizer=self.lower_regularizer)


class Ridged(Problem):
    """g + damping |y|^2 / 2 instead of g. Made by `ridged`; all oracles are those of `of`, with the term added."""

    of: Problem = eqx.field(kw_only=True)
    damping: Any = eqx.field(kw_only=True)

    @property
    def place(self) -> Place:
        return self.of.place

    def value_upper(self, x: PyTree, y: PyTree) -> Scalar:
        return self.of.value_upper(x, y)

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return self.of.grad_upper(x, y)

    def value_and_grad_upper(self, x: PyTree, y: PyTree) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        return self.of.value_and_grad_upper(x, y)

    def value_lower(self, x: PyTree, y: PyTree) -> Scalar:
        return self._raised(self.of.value_lower(x, y), y)

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        return _tree.axpy(self.damping, y, self.of.grad_lower(x, y))

    def value_and_grad_lower(self, x: PyTree, y: PyTree) -> tuple[Scalar, PyTree]:
        value, gradient = self.of.value_and_grad_lower(x, y)
        return self._raised(value, y), _tree.axpy(self.damping, y, gradient)

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        return self.of.grad_lower_x(x, y)

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        product = self.of.hvp(x, y)
        return lambda v: _tree.axpy(self.damping, v, product(v))

    def preconditioner(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree] | None:
        return self.of.preconditioner(x, y)

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return self.of.cross(x, y)

    def _raised(self, value: Scalar, y: PyTree) -> Scalar:
        return value + 0.5 * self.damping * _tree.dot(y, y).astype(value.dtype)


def ridged(problem: Problem, damping: float | None) -> Problem:
    """The problem with this damping; unchanged if it is None."""
    if damping is None:
        return problem
    parts = problem.upper, problem.lower, problem.regularizer, problem.data
    return Ridged(*parts, lower_regularizer=problem.lower_regularizer, of=problem, damping=damping)


def on_batches(problem: Problem, **levels: Batch) -> Problem:
    """The problem with batches as the rows of `upper`, `lower`, or both."""
    return eqx.tree_at(lambda p: p.data, problem, problem.data.having(**levels))


def in_blocks(problem: Problem, block: int) -> Problem:
    """The problem with oracles that go through its rows `block` by `block`; unchanged if it has no rows, if one block
    holds all of them, or if its class has oracles of its own.
    """
    if type(problem) is not Problem or max(problem.row_numbers()) <= block:
        return problem
    parts = problem.upper, problem.lower, problem.regularizer, problem.data
    return InBlocks(*parts, lower_regularizer=problem.lower_regularizer, block=block)


@jax.custom_vjp
def differentiable_grad_lower(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    """`problem.grad_lower`, whose own derivative is taken through `problem.hvp` and `problem.cross`.

    Lower solvers step along this, so that unrolling them uses, and counts, the same oracles as implicit
    differentiation: pulling w back through g_y costs one g_yy w and one g_xy w.
    """
    return problem.grad_lower(x, y)


def _forward(problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, tuple[Problem, PyTree, PyTree]]:
    return problem.grad_lower(x, y), (problem, x, y)


def _backward(at: tuple[Problem, PyTree, PyTree], w: PyTree) -> tuple[None, PyTree, PyTree]:
    problem, x, y = at
    return None, problem.cross(x, y)(w), problem.hvp(x, y)(w)


differentiable_grad_lower.defvjp(_forward, _backward)
