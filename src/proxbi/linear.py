"""Linear solvers for the adjoint system H v = b, H = g_yy, b = f_y: always with a residual and a status."""

from abc import abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int, PyTree

from proxbi import _check, _tree
from proxbi._module import Module
from proxbi._tree import Scalar

Matvec = Callable[[PyTree], PyTree]


class LinearStatus(IntEnum):
    """How a linear solve ended."""

    OK = 0
    """The residual, recomputed and not by recursion, is below the tolerance."""
    BUDGET = 1
    """The steps were used up first."""
    NEGATIVE_CURVATURE = 2
    """A direction p with <p, H p> <= 0 was found: H, or the preconditioner, is not positive definite. The iterate
    before it is returned."""
    NONFINITE = 3
    """H, b or the start gave a NaN or an infinity. The last finite iterate, or zero, is returned."""
    STALLED = 4
    """Rounding keeps the residual above the tolerance: more steps will not help, more precision will."""


class LinearInfo(NamedTuple):
    """The status and accuracy of the returned v.

    Example: `CG`.
    """

    status: Int[Array, ""]
    """A `LinearStatus`; 0 is OK."""
    residual: Scalar
    """|b - H v| / |b|."""
    iterations: Int[Array, ""]
    """Steps taken."""
    matvecs: Int[Array, ""]
    """Products with H, including those that measured the residual."""


class LinearSolver(Module):
    """Anything with `solve(matvec, b, v0)`; v0 = None starts at zero and saves the product that a warm start needs.

    Example: `CG`.
    """

    @abstractmethod
    def solve(self, matvec: Matvec, b: PyTree, v0: PyTree | None = None) -> tuple[PyTree, LinearInfo]:
        """v close to the solution of H v = b, and how close."""


def _callable_pytree(function: Any) -> Any:
    """Plain functions become static leaves; callables that are pytrees (with arrays inside) stay as they are."""
    is_plain = callable(function) and jax.tree_util.all_leaves([function])
    return Partial(function) if is_plain else function


class Krylov(NamedTuple):
    """The state of CG, in units in which |b| = 1. In each round H is applied once: to the direction, or to v itself
    where `measure` is set."""

    v: PyTree
    residual: PyTree
    direction: PyTree
    decrease: Scalar  # <r, M r>
    size: Scalar  # |r|
    energy: Scalar  # <v, H v>, for a start at zero
    longest: Scalar  # the longest step so far: an estimate of 1 / lambda_min(M H)
    cosine: Scalar  # between the last p and H p: far below 0 where H has negative curvature along it
    measured: Scalar  # |r| when it was last computed as b - H v
    measure: Array
    status: Int[Array, ""]
    iterations: Int[Array, ""]
    matvecs: Int[Array, ""]
    observed: PyTree


_RUNNING = -1
_ROUNDING = 8  # residuals below this many units of rounding cannot be distinguished from zero
_STUCK = 0.5  # a true residual that fell by less than this, though the recursion said "small", will not fall
_LARGEST = 1 / 8  # of the largest number: its reciprocal is not denormal


# The one CG of the package. `small(state)` says when the residual is small enough; `observe(observed, p, H p, <p, H p>,
# good)` sees every product on the way, and whether it is finite and its curvature positive. The recursive residual
# drifts from the true one; with `verify` it is computed afresh before the status is OK.
def conjugate_gradients(
    matvec: Matvec,
    b: PyTree,
    v0: PyTree | None,
    small: Callable[[Krylov], Array],
    *,
    steps: Any,
    precondition: Matvec = lambda r: r,
    observe: Callable[[PyTree, PyTree, PyTree, Scalar, Array], PyTree] = lambda observed, *_: observed,
    observed: PyTree = None,
    verify: bool = True,
) -> tuple[Krylov, Scalar]:
    """CG on H v = b from v0 (None: zero), until `small` holds or no more progress is possible; the last state, in units
    in which |b| = 1, and |b|.
    """
    # The system is solved for b / |b|: inner products of a small b underflow, and b is often small near a solution.
    scale = _tree.norm(b)
    unit = jnp.where((scale > 0) & (scale < float(jnp.finfo(scale.dtype).max) * _LARGEST), scale, 1)
    start = None if v0 is None else _tree.scale(1 / unit, v0)
    b = _tree.scale(1 / unit, b)

    def advance(at: Krylov) -> Krylov:
        applied = _tree.where(at.measure, at.v, at.direction) if verify else at.direction
        product = matvec(applied)
        moved, curvature = _moved(at, product, b, precondition, verify)
        observed = observe(at.observed, at.direction, product, curvature, moved.status == _RUNNING)
        return _ended(at, moved, small(moved), steps, observed, verify)

    last = jax.lax.while_loop(
        lambda at: at.status == _RUNNING, advance, _started(b, start, precondition, small, observed, verify)
    )
    return last, unit


def _started(
    b: PyTree,
    v0: PyTree | None,
    precondition: Matvec,
    small: Callable[[Krylov], Array],
    observed: PyTree,
    verify: bool,
) -> Krylov:
    zero, size = _tree.zeros_like(b), _tree.norm(b)
    finite = jnp.isfinite(size) & _tree.all_finite(zero if v0 is None else v0)
    settled = (size == 0) | ~finite  # the solution for b = 0 is known
    direction = precondition(b)
    unknown, none = jnp.full_like(size, jnp.inf), jnp.zeros_like(size)
    status = jnp.select([~finite, size == 0], [LinearStatus.NONFINITE, LinearStatus.OK], _RUNNING)
    first = Krylov(
        v=zero if v0 is None else _tree.where(settled, zero, v0),
        residual=b,
        direction=direction,
        decrease=jnp.maximum(_tree.dot(b, direction), 0),
        size=size if v0 is None else jnp.where(settled, size, unknown),
        energy=none,
        longest=none,
        cosine=none,
        measured=unknown,
        measure=jnp.asarray(v0 is not None),
        status=status.astype(jnp.int32),
        iterations=jnp.int32(0),
        matvecs=jnp.int32(0),
        observed=observed,
    )
    done = small(first) if not verify else jnp.asarray(False)
    return first._replace(status=jnp.where(done & (status == _RUNNING), int(LinearStatus.OK), first.status))


def _moved(at: Krylov, product: PyTree, b: PyTree, precondition: Matvec, verify: bool) -> tuple[Krylov, Scalar]:
    """The state after one product, a step along the direction or the measured residual of the present v; and the
    curvature <p, H p>.
    """
    eps, norm = float(jnp.finfo(at.size.dtype).eps), _tree.norm if verify else _tree.length
    curvature = _tree.dot(at.direction, product)
    # For a positive definite H the cosine between p and H p is at least about 2 / sqrt(kappa).
    cosine = _ratio(curvature, norm(at.direction) * norm(product))
    flat = (cosine <= eps) | (at.decrease <= 0)
    length = jnp.where(flat, 0, _ratio(at.decrease, curvature))
    if verify:
        flat, length = flat & ~at.measure, jnp.where(at.measure, 0, length)
    v = _tree.axpy(length, at.direction, at.v)
    residual = _tree.axpy(-length, product, at.residual)
    if verify:
        residual = _tree.where(at.measure, _tree.subtract(b, product), residual)
    conditioned = precondition(residual)
    decrease, size = _tree.dot(residual, conditioned), norm(residual)
    turn = jnp.where(at.measure, 0, _ratio(decrease, at.decrease)) if verify else _ratio(decrease, at.decrease)
    finite = jnp.isfinite(size) & jnp.isfinite(decrease) & jnp.isfinite(curvature)
    finite = finite & _tree.all_finite(v) if verify else finite
    faults = [~finite, flat]
    status = jnp.select(faults, [LinearStatus.NONFINITE, LinearStatus.NEGATIVE_CURVATURE], _RUNNING)
    return at._replace(
        v=v,
        residual=residual,
        direction=_tree.axpy(turn, at.direction, conditioned),
        decrease=decrease,
        size=size,
        energy=at.energy + length * at.decrease,
        longest=jnp.maximum(at.longest, length),
        cosine=cosine,
        status=status.astype(jnp.int32),
        iterations=at.iterations + jnp.where(at.measure, 0, 1),
        matvecs=at.matvecs + 1,
    ), curvature


def _ended(at: Krylov, moved: Krylov, small: Array, steps: Any, observed: PyTree, verify: bool) -> Krylov:
    """`moved`, with the status it ends with. A round that met NaN or a flat direction is undone."""
    good = moved.status == _RUNNING
    # The recursion may keep decreasing when b - H v no longer does: do not wait for a residual below rounding level.
    small = small | (moved.size <= _ROUNDING * float(jnp.finfo(moved.size.dtype).eps))
    used_up = moved.iterations >= steps
    if verify:
        stuck = at.measure & ~small & (moved.size > _STUCK * at.measured)
        ends = {
            LinearStatus.OK: at.measure & small,
            LinearStatus.STALLED: stuck,
            LinearStatus.BUDGET: ~small & used_up,
        }
        measured = jnp.where(at.measure, moved.size, at.measured)
        moved = moved._replace(measure=small & ~at.measure, measured=measured)
    else:
        ends = {LinearStatus.OK: small, LinearStatus.BUDGET: used_up}
    codes = [
        moved.status,
        *(jnp.int32(int(end)) for end in ends),
    ]
    status = jnp.select([~good, *ends.values()], codes, jnp.int32(_RUNNING))
    kept = _tree.where(good, moved, at)
    return kept._replace(
        status=status, iterations=moved.iterations, matvecs=moved.matvecs, cosine=moved.cosine, observed=observed
    )


class CG(LinearSolver):
    r"""Preconditioned conjugate gradients for $H v = b$ with H positive definite, guarded.

    The recursive residual of CG drifts from the true one, so convergence is only declared after $b - Hv$ was computed
    afresh; a matrix that is indefinite, singular or not finite stops the iteration at the last good iterate and is
    reported. Nothing is ever reported as a success that is not one.

    **Arguments:**

    - `steps`: the maximal number of iterations.
    - `tol`: stop when $|b - Hv| \le tol\,|b|$; 0 runs to rounding level.
    - `preconditioner`: r -> M r with M close to the inverse of H, symmetric positive definite.

    Reference: M. R. Hestenes, E. Stiefel, *Methods of conjugate gradients for solving linear systems*, 1952.

    >>> v, info = CG(steps=10, tol=1e-6).solve(lambda v: jnp.array([1.0, 4.0]) * v, jnp.array([1.0, 2.0]))
    >>> print(v.round(3), LinearStatus(int(info.status)).name, int(info.iterations))
    [1.  0.5] OK 2
    """

    steps: int = eqx.field(static=True, default=100)
    tol: _check.Number = eqx.field(converter=_check.as_float, default=1e-6)
    preconditioner: Callable[[PyTree], PyTree] | None = eqx.field(converter=_callable_pytree, default=None)

    def __check_init__(self) -> None:
        _check.positive_int("steps", self.steps)
        _check.non_negative("tol", self.tol)
        if self.preconditioner is not None and not callable(self.preconditioner):
            raise TypeError(f"preconditioner must be a function, got {type(self.preconditioner).__name__}.")

    def solve(self, matvec: Matvec, b: PyTree, v0: PyTree | None = None) -> tuple[PyTree, LinearInfo]:
        """v with |b - H v| <= tol |b|, or the best v found and the reason."""
        last, unit = conjugate_gradients(
            matvec,
            b,
            v0,
            lambda at: at.size <= self.tol.astype(at.size.dtype),
            steps=self.steps,
            precondition=self._precondition,
        )
        return _tree.scale(unit, last.v), LinearInfo(last.status, last.size, last.iterations, last.matvecs)

    def _precondition(self, r: PyTree) -> PyTree:
        return r if self.preconditioner is None else self.preconditioner(r)


class Neumann(LinearSolver):
    r"""The Neumann series $v = \alpha\sum_{j<N}(I - \alpha H)^j b$ by N steps $v \leftarrow v + \alpha\,(b - H v)$.

    Converges for `step_size` $\alpha < 2 / \lambda_{max}(H)$. From a warm start it sums the series of the correction.

    **Arguments:**

    - `step_size`: alpha.
    - `steps`: N.
    - `tol`: the relative residual from which on the status is OK.

    Reference: J. Lorraine, P. Vicol, D. Duvenaud, *Optimizing millions of hyperparameters by implicit differentiation*,
    2020.

    >>> v, info = Neumann(0.25, steps=20).solve(lambda v: jnp.array([1.0, 4.0]) * v, jnp.array([1.0, 2.0]))
    >>> print(v.round(2))
    [1.  0.5]
    """

    step_size: _check.Number = eqx.field(converter=_check.as_float)
    steps: int = eqx.field(static=True)
    tol: _check.Number = eqx.field(converter=_check.as_float, default=1e-6)

    def __check_init__(self) -> None:
        _check.positive("step_size", self.step_size)
        _check.positive_int("steps", self.steps)
        _check.non_negative("tol", self.tol)

    def solve(self, matvec: Matvec, b: PyTree, v0: PyTree | None = None) -> tuple[PyTree, LinearInfo]:
        """N steps from v0, and the residual after them."""

        def step(at: tuple[PyTree, PyTree], _: Any) -> tuple[tuple[PyTree, PyTree], None]:
            v = _tree.axpy(self.step_size, at[1], at[0])
            return (v, _tree.subtract(b, matvec(v))), None

        start = (_tree.zeros_like(b), b) if v0 is None else (v0, _tree.subtract(b, matvec(v0)))
        v, residual = jax.lax.scan(step, start, length=self.steps)[0]
        info = _judge(residual, b, self.tol, self.steps, self.steps + (v0 is not None))
        return _tree.where(jnp.isfinite(info.residual), v, start[0]), info


class Direct(LinearSolver):
    """A dense Cholesky solve (lineax), dim(y) products with H: the exact reference for small problems. Zero, and a
    status that says why, where H is not positive definite or not finite.

    **Arguments:**

    - `tol`: the relative residual from which on the status is OK.

    >>> v, info = Direct().solve(lambda v: jnp.array([1.0, 4.0]) * v, jnp.array([1.0, 2.0]))
    >>> print(v, LinearStatus(int(info.status)).name)
    [1.  0.5] OK
    """

    tol: _check.Number = eqx.field(converter=_check.as_float, default=1e-6)

    def __check_init__(self) -> None:
        _check.non_negative("tol", self.tol)

    def solve(self, matvec: Matvec, b: PyTree, v0: PyTree | None = None) -> tuple[PyTree, LinearInfo]:
        """The solution of H v = b; `v0` is not needed."""
        import lineax  # here: the import is slow, and only small problems need it

        structure = jax.eval_shape(lambda: b)
        operator = lineax.FunctionLinearOperator(matvec, structure, lineax.positive_semidefinite_tag)
        found = lineax.linear_solve(operator, b, lineax.Cholesky(), throw=False)
        size = sum(leaf.size for leaf in jax.tree.leaves(b))
        # If H is finite and Cholesky fails, H is not positive definite.
        solved = _tree.all_finite(found.value)
        v = _tree.where(solved, found.value, _tree.zeros_like(b))
        product = matvec(_tree.where(solved, v, b))
        info = _judge(_tree.subtract(b, _tree.where(solved, product, v)), b, self.tol, 1, size + 1)
        fault = jnp.where(_tree.all_finite((b, product)), LinearStatus.NEGATIVE_CURVATURE, LinearStatus.NONFINITE)
        return v, info._replace(status=jnp.where(solved, info.status, fault).astype(jnp.int32))


class _Directions(NamedTuple):
    solution: Float[Array, " n"]
    residual: Float[Array, " n"]
    directions: Float[Array, "steps n"]
    images: Float[Array, "steps n"]
    """A times the directions: orthonormal, or zero where not yet used."""
    steps: Int[Array, ""]


def minimal_residuals(
    matvec: Callable[[Array], Array], b: Float[Array, " n"], accuracy: float, steps: int
) -> tuple[Float[Array, " n"], Int[Array, ""]]:
    """A^-1 b for an A that need not be symmetric, until |b - A v| <= accuracy |b| or the steps are used up, and how
    many products that took: GCR (Eisenstat, Elman, Schultz, 1983).
    """

    def unsolved(at: _Directions) -> Array:
        rough = jnp.linalg.norm(at.residual) > accuracy * jnp.linalg.norm(b)
        return rough & (at.steps < len(at.images))

    def advance(at: _Directions) -> _Directions:
        direction, image = at.residual, matvec(at.residual)
        known = at.images @ image
        direction, image = direction - known @ at.directions, image - known @ at.images
        size = jnp.linalg.norm(image)
        unit = jnp.where(size > 0, size, 1)
        direction, image = direction / unit, image / unit
        length = image @ at.residual
        return _Directions(
            at.solution + length * direction,
            at.residual - length * image,
            at.directions.at[at.steps].set(direction),
            at.images.at[at.steps].set(image),
            at.steps + 1,
        )

    none = jnp.zeros((min(steps, b.size), b.size), b.dtype)
    last = jax.lax.while_loop(unsolved, advance, _Directions(jnp.zeros_like(b), b, none, none, jnp.int32(0)))
    return last.solution, last.steps


def _ratio(a: Any, b: Scalar) -> Scalar:
    """a / b, and a for b = 0."""
    return a / jnp.where(b == 0, 1, b)


def _judge(residual: PyTree, b: PyTree, tol: Array, iterations: int, matvecs: int) -> LinearInfo:
    """Status and relative residual of a solver that ran its course."""
    scale, size = _tree.norm(b), _tree.norm(residual)
    relative = size / jnp.where(scale > 0, scale, 1)
    status = jnp.where(relative <= tol.astype(relative.dtype), LinearStatus.OK, LinearStatus.BUDGET)
    status = jnp.where(jnp.isfinite(relative), status, LinearStatus.NONFINITE)
    return LinearInfo(status.astype(jnp.int32), relative, jnp.int32(iterations), jnp.int32(matvecs))
