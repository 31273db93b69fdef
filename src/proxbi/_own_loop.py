r"""Phi and its gradient, for an outer loop of your own.

The first solve works until its own estimate of its error is small enough. That estimate is linear and ignores
rounding. So a second, short solve corrects y and v once more, at the same x: its change is the error that the first one
left, whatever the cause, up to a small part of it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from proxbi import _check, _compile, _tree, _validate
from proxbi._lower_level import residual
from proxbi._tree import Scalar
from proxbi.hypergradient import ControlledHypergradient, Evaluation, Implicit, Outcome
from proxbi.problem import Counts, Problem

_SECOND = 0.1  # the accuracy of the second solve: it sees the error of the first up to about this part of it
_ROUNDING = 8  # units of rounding by which a sum of many terms may be off
_FALLEN = 0.5  # of |g_y| at y0: a lower solve that leaves more of it, and more than rounding, has not solved anything


class HypergradientInfo(NamedTuple):
    """What `value_and_hypergradient` returns besides the value and the gradient.

    Example: `value_and_hypergradient`.
    """

    y: PyTree
    """The lower solution: a good `y0` for the next x."""
    v: PyTree
    """The adjoint, g_yy v = f_y: a good `v0` for the next x."""
    error: Scalar
    """An estimate of the error of the gradient (Euclidean norm); infinite if there is no gradient."""
    value_error: Scalar
    """An estimate of the error of the value."""
    lower_residual: Scalar
    """|g_y(x, y)|."""
    outcome: Int[Array, ""]
    """An `Outcome`; the value and the gradient are NaN if it is worse than `ROUGH`."""
    counts: Counts
    """The oracle calls."""

    @property
    def ok(self) -> Bool[Array, ""]:
        """Whether the error is at most `accuracy` times the norm of the gradient. Near a stationary point the gradient
        may be as small as rounding, and this False: compare `error` with what you need.
        """
        return self.outcome == Outcome.OK


def value_and_hypergradient(
    problem: Problem,
    x: PyTree,
    y0: PyTree,
    *,
    accuracy: float = 1e-6,
    v0: PyTree | None = None,
    hypergradient: ControlledHypergradient | None = None,
) -> tuple[Scalar, PyTree, HypergradientInfo]:
    r"""$\Phi(x) = f(x, y^*(x))$ and $\nabla\Phi(x) = f_x - g_{xy} v$ with $g_{yy} v = f_y$, taken at $y^*(x) =
    \arg\min_y g(x, y)$: for an outer loop of your own, or one of optax, SciPy, ...

    A pure function that works under `jit` and `vmap` (a loop is faster under `jit`). `jax.grad` of the value is the
    hypergradient, so the value may be part of a larger loss. Only derivatives with respect to x are defined: those of
    the data and of the gradient raise an error, and those with respect to `y0` and `v0` are zero. The regularizer of
    the problem is not used: apply its prox in your loop.

    **Arguments:**

    - `problem`: f and g. Make it once, outside the loop: every new function is compiled again.
    - `x`: the point; any pytree of floating point arrays.
    - `y0`: the start of the lower solve, for example the `.y` of the last call.
    - `accuracy`: of the gradient, relative to its norm.
    - `v0`: the start of the adjoint solve, for example the `.v` of the last call; 0 if None.
    - `hypergradient`: `Implicit()` (the default), `Penalty()` (gradients only), or one of your own.

    **Returns:** the value, the gradient, and a `HypergradientInfo`: `.y`, `.v`, `.error`, `.value_error`, `.ok`,
    `.outcome`, `.counts`. If the lower level cannot be solved, value and gradient are NaN and `.outcome` gives the
    reason.

    >>> from proxbi import Problem
    >>> problem = Problem(lambda x, y: jnp.sum((y - 2) ** 2), lambda x, y: jnp.sum((y - x) ** 2))
    >>> value, gradient, info = value_and_hypergradient(problem, jnp.array([3.0, 0.0]), jnp.zeros(2))
    >>> print(value, gradient, info.ok)
    5.0 [ 2. -4.] True

    A loop with optax, each step from the last y and v:

    >>> import optax
    >>> optimizer = optax.sgd(0.3, momentum=0.5)
    >>> x, y, v = jnp.array([3.0, 0.0]), jnp.zeros(2), jnp.zeros(2)
    >>> state = optimizer.init(x)
    >>> for _ in range(60):
    ...     value, gradient, info = value_and_hypergradient(problem, x, y, v0=v)
    ...     updates, state = optimizer.update(gradient, state)
    ...     x, y, v = optax.apply_updates(x, updates), info.y, info.v
    >>> print(x.round(2))
    [2. 2.]
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a proxbi Problem, got {type(problem).__name__}.")
    hypergradient = Implicit() if hypergradient is None else hypergradient
    if not isinstance(hypergradient, ControlledHypergradient):
        given = type(hypergradient).__name__
        raise TypeError(f"hypergradient must be a ControlledHypergradient such as Implicit(), got {given}.")
    _check.positive("accuracy", _check.as_float(accuracy))
    x, y0 = _check.float_tree("x", x), _check.float_tree("y0", y0)
    v0 = _tree.zeros_like(y0) if v0 is None else _check.float_tree("v0", v0)
    if jax.eval_shape(lambda: v0) != jax.eval_shape(lambda: y0):
        raise ValueError("v0 must have the structure, shapes and dtype of y0.")
    _validate._require_one_dtype(x, y0)
    _validate.require_objectives(problem, x, y0)
    return _evaluated(problem, x, y0, v0, hypergradient, jnp.asarray(accuracy, jax.tree.leaves(y0)[0].dtype))


Found = tuple[Scalar, PyTree, HypergradientInfo]


@jax.custom_vjp
def _evaluated(
    problem: Problem, x: PyTree, y0: PyTree, v0: PyTree, hypergradient: ControlledHypergradient, accuracy: Scalar
) -> Found:
    return _twice(problem, x, y0, v0, hypergradient, accuracy)


def _forward(*arguments: Any) -> tuple[Found, PyTree]:
    problem, x, y0, v0, hypergradient, accuracy = (
        jax.tree.map(lambda leaf: leaf.value, argument, is_leaf=_is_primal) for argument in arguments
    )
    if any(leaf.perturbed for leaf in jax.tree.leaves(arguments[0], is_leaf=_is_primal) if _is_primal(leaf)):
        raise TypeError(
            "value_and_hypergradient has a derivative with respect to x only, not with respect to the data of the "
            "problem: make what is differentiated a part of x."
        )
    found = _evaluated(problem, x, y0, v0, hypergradient, accuracy)
    return found, found[1]


def _backward(gradient: PyTree, pulled: Any) -> tuple[None, PyTree, None, None, None, None]:
    value, *others = pulled
    if not all(map(_is_zero, jax.tree.leaves(others, is_leaf=_is_zero))):
        raise TypeError(
            "only the value that value_and_hypergradient returns can be differentiated: the gradient, y and v have no "
            "derivatives (wrap them in jax.lax.stop_gradient if you need none)."
        )
    factor = 0 if _is_zero(value) else value
    return None, _tree.scale(factor, gradient), None, None, None, None


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)


def _is_zero(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.SymbolicZero)


_evaluated.defvjp(_forward, _backward, symbolic_zeros=True)


class _Solve(NamedTuple):
    found: Evaluation
    before: Evaluation
    """What the last solve started from."""


@_compile.jit
def _twice(
    problem: Problem, x: PyTree, y0: PyTree, v0: PyTree, hypergradient: ControlledHypergradient, accuracy: Scalar
) -> Found:
    """Both solves, and what the second says about the first."""
    known = hypergradient.init(problem, x, y0)._replace(v=v0)

    def solve(at: _Solve, accuracy: Scalar) -> tuple[_Solve, None]:
        def again() -> _Solve:
            new = hypergradient(problem, x, at.found, _tree.zeros_like(x), accuracy)
            return _Solve(new._replace(counts=at.found.counts + new.counts), at.found)

        return jax.lax.cond(at.found.outcome <= int(Outcome.ROUGH), again, lambda: at), None

    accuracies = jnp.stack([accuracy, jnp.full_like(accuracy, _SECOND)])
    (found, before), _ = jax.lax.scan(solve, _Solve(known, known), accuracies)
    error, value_error, solved, cost = _errors(problem, x, y0, found, before)
    broken = (found.outcome > int(Outcome.ROUGH)) | ~solved | ~_tree.all_finite((found.value, found.grad))
    rough = jnp.where(error <= accuracy * _tree.norm(found.grad), int(Outcome.OK), int(Outcome.ROUGH))
    outcome = jnp.where(broken, jnp.maximum(found.outcome, int(Outcome.UNSOLVED)), rough)
    info = HypergradientInfo(
        y=found.y,
        v=found.v,
        error=jnp.where(broken, jnp.inf, error),
        value_error=jnp.where(broken, jnp.inf, value_error),
        lower_residual=found.lower_residual,
        outcome=outcome.astype(jnp.int32),
        counts=found.counts + cost,
    )
    return jnp.where(broken, jnp.nan, found.value), _tree.where(broken, _nans(x), found.grad), info


# Where y is near y*, g_y is a sum of terms as large as g_yy y that cancel, and the value, f - <v, g_y>, is as uncertain
# as <v, .> of their rounding. A difference of gradients shows g_yy y without a second derivative.
def _errors(
    problem: Problem, x: PyTree, y0: PyTree, found: Evaluation, before: Evaluation
) -> tuple[Scalar, Scalar, Bool[Array, ""], Counts]:
    """Of the gradient and of the value, whether y is a solution at all: in the domain of g, where the lower gradient
    has fallen, or is small anyway; and what it cost to say so.
    """
    change, moved = _tree.norm(_tree.subtract(found.grad, before.grad)), jnp.abs(found.value - before.value)
    eps = float(jnp.finfo(change.dtype).eps)
    unit, step = _ROUNDING * eps, eps**0.5
    points = (y0, found.y, _tree.scale(1 + step, found.y))
    (start, cost), (left, again) = (residual(problem, x, y) for y in points[:2])
    here, ahead = (problem.grad_lower(x, y) for y in points[1:])
    cancels = _tree.norm(_tree.subtract(ahead, here)) / step
    off = jnp.abs(found.value) + _tree.norm(found.v) * cancels
    error, value_error = change + found.error + found.bias + unit * found.terms, moved + found.value_error + unit * off
    solved = (left <= _FALLEN * start) | (left <= step * cancels)
    solved = solved & jnp.isfinite(problem.value_lower(x, found.y))
    return error, value_error, solved, cost + again + Counts(grad_lower=2, value_lower=1)


def _nans(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), tree)
