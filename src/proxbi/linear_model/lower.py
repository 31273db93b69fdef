r"""Penalised linear models of all folds at once: the lower level, solved to full precision.

    u*_f = argmin_u  sum_i w_fi l(z_i u, t_i) + sum_g a_g |u_g| + 1/2 sum_j b_j u_j^2,        sum_i w_fi = 1,      (fit)

for each fold f. The last column of z is 1, its coefficients are the intercept, and their a and b are 0. The blocks g
are single coefficients (Lasso, elastic net) or groups of them (group Lasso); a = 0 is a ridge regression.

**Newton.** The loss is replaced by its quadratic model, whose minimiser v gives the direction v - u, and the best of a
few step lengths is used. The squared loss is its own quadratic model: one step is enough.

**The quadratic model**, 1/2 <u, H u> - <c, u> with the penalties, is solved in rounds of two steps, both of which
decrease it:

1. Coordinate descent. For each block, with L_g >= |H_gg| and d the gradient, u_g moves to the prox of
   (a_g / L_g) |.| at u_g - d_g / L_g. For single coefficients that is the exact minimiser.
2. Newton's method on the face. Where no coefficient changes its sign, the penalty is smooth: its gradient is a_g u_g /
   |u_g|, its Hessian a_g / |u_g| (I - u_g u_g' / |u_g|^2), which is zero for single ones. The step ends where the first
      coefficient vanishes, if that is better.

Coordinate descent finds the support, and the second step then finishes, however correlated the columns are. The error
of u is measured by the distance of 0 from the subdifferential.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int

from proxbi._compile import jit
from proxbi._tree import Scalar
from proxbi.glm.losses import Loss, Squared

TOLERANCE = 1e-9  # of the distance to the subdifferential, relative to the largest gradient at u = 0
MOST_ROUNDS, MOST_FACE_STEPS, MOST_STEPS = 200, 100, 50  # of a model, a round, Newton's method: rarely reached
LENGTHS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)  # of a step, from which the best is taken
JITTER = 1e-13  # of each curvature: faces may be flat if columns repeat one another
VANISHES = 1e-12  # of the size before: a coefficient that a step makes so small is zero


class Rows(NamedTuple):
    """The rows and their weights in each role."""

    design: Float[Array, "*folds rows columns"]
    """Shared by all folds, or one per fold: folds with small supports may have different columns."""
    targets: Array
    fit: Float[Array, "folds rows"]
    """w, the training weights of each fold; they add up to 1."""
    judge: Float[Array, "folds rows"]
    """The validation weights of each fold; likewise."""


class Blocks(NamedTuple):
    """The entries of u in each block, padded with the index `entries`, which means none."""

    members: Int[Array, "folds blocks largest"]
    of_entry: Int[Array, "folds entries"]


class Penalties(NamedTuple):
    """a and b of each fold."""

    norm: Float[Array, "folds blocks"]
    square: Float[Array, "folds entries"]


class Model(NamedTuple):
    """The quadratic model of each fold, b included."""

    hessian: Float[Array, "folds entries entries"]
    linear: Float[Array, "folds entries"]


class Fitted(NamedTuple):
    """The solution of each fold."""

    u: Float[Array, "folds entries"]
    loss: Float[Array, " folds"]
    """The loss on its validation rows."""
    slopes: Float[Array, "folds rows outputs"]
    """w l' at the solution: the residuals to correlate further columns with."""
    violation: Float[Array, " folds"]
    """The distance from the subdifferential, relative to the gradient at 0."""


@jit
def squared_model(rows: Rows) -> Model:
    """The quadratic model of the squared loss, without penalties; it does not depend on u."""

    def of_fold(design: Array, w: Array) -> Model:
        return Model((design * w[:, None]).T @ design, (w * rows.targets[:, 0]) @ design)

    if rows.design.ndim == 2:
        return jax.lax.map(lambda w: of_fold(rows.design, w), rows.fit)
    return jax.lax.map(lambda given: of_fold(*given), (rows.design, rows.fit))


def fit_folds(
    loss: Loss, rows: Rows, model: Model | None, blocks: Blocks, penalties: Penalties, u: Array, smooth: bool
) -> Fitted:
    """Solve (fit) for each fold, starting at u. `model` is that of the squared loss; `smooth` means that all a are
    0."""
    return (_fit_smooth if smooth else _fit_rough)(loss, rows, model, blocks, penalties, u)


@jit
def _fit_smooth(loss: Loss, rows: Rows, model: Model | None, blocks: Blocks, penalties: Penalties, u: Array) -> Fitted:
    return fit(loss, rows, model, blocks, penalties, u, smooth=True)


@jit
def _fit_rough(loss: Loss, rows: Rows, model: Model | None, blocks: Blocks, penalties: Penalties, u: Array) -> Fitted:
    return fit(loss, rows, model, blocks, penalties, u, smooth=False)


def fit(
    loss: Loss, rows: Rows, model: Model | None, blocks: Blocks, penalties: Penalties, u: Array, smooth: bool
) -> Fitted:
    """`fit_folds`, to be used in a larger compiled program."""
    solve = jax.vmap(partial(_solve_quadratic, smooth=smooth))
    zero = _gradient(loss, rows, jnp.zeros_like(u))
    scale = jnp.maximum(jnp.max(jnp.abs(zero), axis=1), jnp.finfo(u.dtype).tiny)
    if isinstance(loss, Squared) and model is not None:
        hessian = model.hessian + jax.vmap(jnp.diag)(penalties.square)
        u = solve(hessian, model.linear, blocks, penalties.norm, u, scale)
    else:
        u = _newton(loss, rows, blocks, penalties, u, scale, solve)
    scores = _scores(rows, u)
    slopes = _slopes(loss, rows, scores)
    gradient = _pull_back(rows, slopes) + penalties.square * u
    distance = jax.vmap(_distance)(u, gradient, blocks, penalties.norm)
    return Fitted(u, judged(loss, rows, u), slopes, distance / scale)


def _newton(loss: Loss, rows: Rows, blocks: Blocks, penalties: Penalties, u: Array, scale: Array, solve: Any) -> Array:
    lengths = jnp.asarray((0.0, *LENGTHS), u.dtype)

    def gradient(u: Array) -> Array:
        return _gradient(loss, rows, u) + penalties.square * u

    def distances(u: Array, slope: Array) -> Array:
        return jax.vmap(_distance)(u, slope, blocks, penalties.norm) / scale

    def step(at: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        u, slope, far, taken = at
        hessian = curvature(loss, rows, None, u) + jax.vmap(jnp.diag)(penalties.square)
        linear = jnp.einsum("fij,fj->fi", hessian, u) - slope
        direction = solve(hessian, linear, blocks, penalties.norm, u, scale) - u
        direction = jnp.where(jnp.all(jnp.isfinite(direction), axis=1, keepdims=True), direction, 0.0)
        values = jax.lax.map(lambda length: objective(loss, rows, blocks, penalties, u + length * direction), lengths)
        best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf), axis=0)
        # Near the solution values are dominated by rounding: take the full step.
        length = jnp.where((best == 0) & (far < TOLERANCE**0.5), 1.0, lengths[best])
        moved = u + length[:, None] * direction
        slope = gradient(moved)
        now = distances(moved, slope)
        better = (now < far) | (far >= TOLERANCE**0.5)
        stuck = ~better | (length == 0)
        return (
            jnp.where(better[:, None], moved, u),
            jnp.where(better[:, None], slope, at[1]),
            jnp.where(stuck, 0.0, now),
            taken + 1,
        )

    slope = gradient(u)
    first = (u, slope, distances(u, slope), jnp.int32(0))
    return jax.lax.while_loop(lambda at: jnp.any(at[2] > TOLERANCE) & (at[3] < MOST_STEPS), step, first)[0]


def objective(loss: Loss, rows: Rows, blocks: Blocks, penalties: Penalties, u: Array) -> Float[Array, " folds"]:
    """The objective of each fold."""
    fitted = jax.vmap(lambda s, w: w @ loss.value(s, rows.targets))(_scores(rows, u), rows.fit)
    return fitted + jax.vmap(_penalty)(u, blocks, penalties)


def curvature(loss: Loss, rows: Rows, model: Model | None, u: Array) -> Float[Array, "folds entries entries"]:
    """The Hessian of the loss of each fold."""
    return _pinned(_hessian(loss, rows, u), rows) if model is None else model.hessian


def judged(loss: Loss, rows: Rows, u: Array) -> Float[Array, " folds"]:
    """The loss of each fold on its validation rows."""
    return jax.vmap(lambda s, w: w @ loss.value(s, rows.targets))(_scores(rows, u), rows.judge)


# The quadratic model of one fold.


def _solve_quadratic(
    hessian: Array, linear: Array, blocks: Blocks, norm: Array, u: Array, scale: Scalar, smooth: bool
) -> Array:
    if smooth:
        return _face_step(hessian, hessian @ u - linear, blocks, norm, u, smooth)

    padded, curvature = jnp.pad(hessian, (0, 1)), _block_curvature(hessian, blocks)

    def descend(at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, _, steps = at
        new = _face_step(hessian, hessian @ u - linear, blocks, norm, u, smooth)
        vanished = jnp.any((new == 0) & (u != 0))
        return new, vanished, steps + 1

    def one_round(at: tuple[Array, Scalar, Array]) -> tuple[Array, Scalar, Array]:
        u, _, rounds = at
        u = _sweep(padded, curvature, linear, blocks, norm, u)
        u = jax.lax.while_loop(
            lambda at: at[1] & (at[2] < MOST_FACE_STEPS), descend, (u, jnp.asarray(True), jnp.int32(0))
        )[0]
        return u, _distance(u, hessian @ u - linear, blocks, norm) / scale, rounds + 1

    first = (u, _distance(u, hessian @ u - linear, blocks, norm) / scale, jnp.int32(0))
    return jax.lax.while_loop(lambda at: (at[1] > TOLERANCE / 10) & (at[2] < MOST_ROUNDS), one_round, first)[0]


def _sweep(padded: Array, curvature: Array, linear: Array, blocks: Blocks, norm: Array, u: Array) -> Array:
    """One sweep of coordinate descent over the blocks. The last entry, for padding, stays 0."""

    def move(g: Int[Array, ""], at: tuple[Array, Array]) -> tuple[Array, Array]:
        u, gradient = at
        members = blocks.members[g]
        target = u[members] - gradient[members] / curvature[g]
        size = jnp.sqrt(jnp.sum(target**2))
        kept = jnp.maximum(1 - norm[g] / (curvature[g] * jnp.where(size > 0, size, 1)), 0)
        change = kept * target - u[members]
        return u.at[members].add(change), gradient + change @ padded[members]

    start = jnp.pad(u, (0, 1))
    gradient = padded @ start - jnp.pad(linear, (0, 1))
    return jax.lax.fori_loop(0, len(norm), move, (start, gradient))[0][:-1]


def _face_step(hessian: Array, gradient: Array, blocks: Blocks, norm: Array, u: Array, smooth: bool) -> Array:
    """u after the best step in the Newton direction on its face."""
    if smooth:
        return u - solve_positive(hessian, gradient)
    curved, on_face, unit = face(hessian, blocks, norm, u)
    of = blocks.of_entry
    slope = jnp.where(on_face, gradient + norm[of] * unit, 0)
    direction = -solve_positive(curved, slope)
    direction = jnp.where(jnp.all(jnp.isfinite(direction)), direction, 0.0)
    vanish = jnp.where((norm[of] > 0) & (u * direction < 0), -u / jnp.where(direction == 0, 1, direction), jnp.inf)
    lengths = jnp.concatenate([jnp.asarray((0.0, *LENGTHS), u.dtype), jnp.minimum(jnp.min(vanish), 1)[None]])
    ends = u + lengths[:, None] * direction
    ends = jnp.where(jnp.abs(ends) <= VANISHES * jnp.abs(u), 0.0, ends)
    # Coefficients that would change their sign are set to 0, so several may vanish in one step.
    ends = jnp.where((norm[of] > 0) & (ends * u < 0), 0.0, ends) if blocks.members.shape[1] == 1 else ends
    steps = ends - u
    values = steps @ gradient + 0.5 * jnp.sum(steps * (steps @ hessian), axis=1)
    values = values + jax.vmap(lambda end: norm @ _sizes(end, blocks))(ends)
    return ends[jnp.argmin(values)]


def face(hessian: Array, blocks: Blocks, norm: Array, u: Array) -> tuple[Array, Array, Array]:
    """For one fold at u: the Hessian on the face, and the identity off it; the entries on the face; u_g / |u_g|."""
    sizes, of = _sizes(u, blocks), blocks.of_entry
    on_face = ((sizes > 0) | (norm == 0))[of]
    unit = jnp.where(sizes[of] > 0, u / jnp.where(sizes > 0, sizes, 1)[of], 0)
    curved = jnp.where(on_face[:, None] & on_face[None], hessian, 0)
    if blocks.members.shape[1] > 1:
        bent = jnp.where(sizes > 0, norm / jnp.where(sizes > 0, sizes, 1), 0)[of]
        same = of[:, None] == of[None]
        curved = curved + jnp.diag(bent) - jnp.where(same, bent[:, None] * unit[:, None] * unit[None], 0)
    return curved + jnp.diag(jnp.where(on_face, 0.0, 1.0)), on_face, unit


def solve_positive(matrix: Array, right: Array) -> Array:
    """matrix^-1 right, where matrix is positive semidefinite. It is scaled to a diagonal of 1 first: penalties may
    differ by more orders of magnitude than there are digits. Padding columns have no curvature, and their entries stay
    0.
    """
    diagonal = jnp.diag(matrix)
    scale = jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    alike = matrix / scale / scale[:, None] + jnp.diag(JITTER + jnp.where(diagonal > 0, 0.0, 1.0))
    return cho_solve(cho_factor(alike), right / scale) / scale


def _block_curvature(hessian: Array, blocks: Blocks) -> Array:
    """L_g: the largest row sum of |H_gg|; 1 if there is no curvature."""
    padded = jnp.pad(hessian, (0, 1))
    members = blocks.members
    inner = jnp.abs(padded[members[:, :, None], members[:, None, :]])
    found = jnp.max(jnp.sum(inner, axis=2), axis=1)
    return jnp.where(found > 0, found, 1)


def _sizes(u: Array, blocks: Blocks) -> Array:
    """|u_g|."""
    parts = jnp.pad(u, (0, 1))[blocks.members]
    return jnp.abs(parts[:, 0]) if parts.shape[1] == 1 else jnp.sqrt(jnp.sum(parts**2, axis=1))


def _penalty(u: Array, blocks: Blocks, penalties: Penalties) -> Scalar:
    return penalties.norm @ _sizes(u, blocks) + 0.5 * jnp.sum(penalties.square * u**2)


def _distance(u: Array, gradient: Array, blocks: Blocks, norm: Array) -> Scalar:
    """The largest distance of 0 from the subdifferential of a block."""
    parts, slopes = (jnp.pad(a, (0, 1))[blocks.members] for a in (u, gradient))
    sizes = jnp.sqrt(jnp.sum(parts**2, axis=1))
    unit = parts / jnp.where(sizes > 0, sizes, 1)[:, None]
    moved = jnp.sqrt(jnp.sum((slopes + norm[:, None] * unit) ** 2, axis=1))
    return jnp.max(jnp.where(sizes > 0, moved, jnp.maximum(moved - norm, 0)))


# The loss of all folds.


def _scores(rows: Rows, u: Array) -> Float[Array, "folds rows outputs"]:
    coefficients = u.reshape(len(u), rows.design.shape[-1], -1)
    return jnp.einsum("rc,fco->fro" if rows.design.ndim == 2 else "frc,fco->fro", rows.design, coefficients)


def _slopes(loss: Loss, rows: Rows, scores: Array) -> Float[Array, "folds rows outputs"]:
    return jax.vmap(lambda s, w: w[:, None] * loss.slope(s, rows.targets))(scores, rows.fit)


def _pull_back(rows: Rows, slopes: Array) -> Float[Array, "folds entries"]:
    products = jnp.einsum("rc,fro->fco" if rows.design.ndim == 2 else "frc,fro->fco", rows.design, slopes)
    return products.reshape(len(slopes), -1)


def _gradient(loss: Loss, rows: Rows, u: Array) -> Float[Array, "folds entries"]:
    return _pull_back(rows, _slopes(loss, rows, _scores(rows, u)))


def _pinned(hessian: Array, rows: Rows) -> Array:
    """The Hessian, with curvature added in the direction where softmax has none: the sum of all intercepts."""
    outputs = hessian.shape[1] // rows.design.shape[-1]
    if outputs == 1:
        return hessian
    mean = jnp.mean(jnp.diagonal(hessian[:, -outputs:, -outputs:], axis1=1, axis2=2), axis=1)
    return hessian.at[:, -outputs:, -outputs:].add(mean[:, None, None])


def _hessian(loss: Loss, rows: Rows, u: Array) -> Float[Array, "folds entries entries"]:
    """sum_i w_i (z_i z_i') (x) l''_i, one pair of outputs after the other: all at once they fill the memory. l'' is
    symmetric, so each pair is computed once.
    """
    scores, columns = _scores(rows, u), rows.design.shape[-1]
    outputs = scores.shape[2]
    units = jnp.eye(outputs, dtype=u.dtype)
    one, other = np.triu_indices(outputs)
    pair_of = np.zeros((outputs, outputs), int)
    pair_of[one, other] = pair_of[other, one] = np.arange(len(one))

    def of_fold(design: Array, scores: Array, weights: Array) -> Array:
        curvature = loss.curvature(scores, rows.targets)
        second = jax.vmap(lambda unit: weights[:, None] * curvature(jnp.broadcast_to(unit, scores.shape)))(units)
        parts = jax.lax.map(lambda w: (design * w[:, None]).T @ design, second[one, :, other])
        parts = parts[pair_of]
        return jnp.transpose(parts, (2, 0, 3, 1)).reshape(columns * outputs, columns * outputs)

    if rows.design.ndim == 2:
        return jax.lax.map(lambda given: of_fold(rows.design, *given), (scores, rows.fit))
    return jax.lax.map(lambda given: of_fold(*given), (rows.design, scores, rows.fit))
