r"""Weighted linear models as bilevel problems with hand-written oracles.

    upper    f(x, y) = 1/m sum_j u_j(x) l(W z_j + b, t_j) + 1/2 <q(x), y^2>           over held-out rows
    lower    g(x, y) = 1/n sum_i w_i(x) l(W z_i + b, t_i) + 1/2 <r(x), y^2>           over training rows

with y = W, or (W, b). x determines the weights w of the rows, the penalties r, or both. With S = Z W' + 1 b' the scores
of all rows at y, and S(v) those at v, the derivatives of g are

    g_y       = (w l'(S) / n)' Z + r y                      g_yy v = (w l''(S) S(v) / n)' Z + r v
    g_x       = w'(x)^T l(S) / n + r'(x)^T y^2 / 2          g_xy v = w'(x)^T <l'(S), S(v)> / n + r'(x)^T (y v)

A gradient or a product with g_yy takes two passes over Z, a cross product one. S, l'(S) and l''(S) do not depend on v:
`hvp` and `cross` compute them once for all directions.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree

from proxbi import _check, _tree
from proxbi._tree import Scalar
from proxbi.glm.layouts import Design, Layout, design
from proxbi.glm.losses import Logistic, Loss, Scores, Softmax, Squared
from proxbi.glm.spectrum import Inverse, Spectrum, spectrum
from proxbi.problem import Problem
from proxbi.regularizers import Regularizer, Zero
from proxbi.rows._host import HostRows, require_usable

LOSSES: dict[str, Loss] = {"softmax": Softmax(), "logistic": Logistic(), "squared": Squared()}
OfX = Callable[[PyTree], Any]


class Linear(NamedTuple):
    """y with a bias: W, outputs by features (or the features alone, for one output), and b.

    Example: `linear_model`.
    """

    weights: Float[Array, "*outputs features"]
    """W."""
    bias: Float[Array, "*outputs"]
    """b."""


class Rows(eqx.Module):
    """Rows and their targets; made by `rows`.

    Example: `linear_model`.
    """

    design: Design
    """The features."""
    targets: Array
    """A target for each row."""

    def scores(self, y: PyTree) -> Scores:
        """W z + b of each row."""
        if not isinstance(y, Linear):
            return self.design.scores(_matrix(y))
        return self.design.scores(_matrix(y.weights)) + y.bias.reshape(1, -1)

    def pull_back(self, slopes: Scores, y: PyTree) -> PyTree:
        """The gradient in y of <slopes, scores(y)>."""
        if not isinstance(y, Linear):
            return self.design.sums(slopes).reshape(y.shape)
        return Linear(self.pull_back(slopes, y.weights), jnp.sum(slopes, axis=0).reshape(y.bias.shape))


class WeightedLoss(eqx.Module):
    """1/n sum_i w_i(x) l(W z_i + b, t_i) + 1/2 <r(x), y^2> over a part of the data, and its derivatives.

    Example: `linear_model`.
    """

    loss: Loss
    """l."""
    weights: OfX
    """w, a function of x or an array."""
    ridge: OfX
    """r, a function of x or an array."""
    part: str = eqx.field(static=True)
    """The key of the rows in the data: "train" or "held_out"."""

    def __call__(self, x: PyTree, y: PyTree, data: dict[str, Rows]) -> Scalar:
        rows = data[self.part]
        fit = jnp.sum(self._weights(x, y, rows) * self.loss.value(rows.scores(y), rows.targets))
        return fit + 0.5 * _tree.dot(self._penalties(x, y), jax.tree.map(jnp.square, y))

    def gradient(self, x: PyTree, y: PyTree, data: dict[str, Rows]) -> PyTree:
        """The gradient in y."""
        rows = data[self.part]
        slopes = self.loss.slope(rows.scores(y), rows.targets) * self._weights(x, y, rows)[:, None]
        return _sum(rows.pull_back(slopes, y), _times(self._penalties(x, y), y))

    def gradient_x(self, x: PyTree, y: PyTree, data: dict[str, Rows]) -> PyTree:
        """The gradient in x."""
        rows = data[self.part]
        losses = self.loss.value(rows.scores(y), rows.targets)
        return self._pull_back_x(x, y, rows)(losses, jax.tree.map(lambda leaf: 0.5 * leaf**2, y))

    def hessian(self, x: PyTree, y: PyTree, data: dict[str, Rows]) -> Callable[[PyTree], PyTree]:
        """v -> g_yy v."""
        rows = data[self.part]
        curvature = self.loss.curvature(rows.scores(y), rows.targets)
        weights, penalties = self._weights(x, y, rows)[:, None], self._penalties(x, y)
        return lambda v: _sum(rows.pull_back(weights * curvature(rows.scores(v)), v), _times(penalties, v))

    def cross(self, x: PyTree, y: PyTree, data: dict[str, Rows]) -> Callable[[PyTree], PyTree]:
        """v -> g_xy v."""
        rows = data[self.part]
        slopes, pull_back = self.loss.slope(rows.scores(y), rows.targets), self._pull_back_x(x, y, rows)
        return lambda v: pull_back(jnp.sum(slopes * rows.scores(v), axis=1), _times(y, v))

    def total_curvature(self, x: PyTree, y: PyTree, data: dict[str, Rows]) -> Float[Array, "outputs outputs"]:
        """1/n sum_i w_i l''_i."""
        rows = data[self.part]
        return self.loss.total_curvature(rows.scores(y), rows.targets, self._weights(x, y, rows))

    def _weights(self, x: PyTree, y: PyTree, rows: Rows) -> Float[Array, " rows"]:
        """w / n, in the dtype of y."""
        count, dtype = rows.design.rows, jax.tree.leaves(y)[0].dtype
        return jnp.broadcast_to(self.weights(x), (count,)).astype(dtype) / count

    def _penalties(self, x: PyTree, y: PyTree) -> PyTree:
        """r, in the shape of y. A number applies to all of y, an array to W alone."""
        r = self.ridge(x)
        if isinstance(y, Linear) and not isinstance(r, Linear):
            r = Linear(r, r if jnp.ndim(r) == 0 else jnp.zeros_like(y.bias))
        return jax.tree.map(lambda leaf, own: jnp.broadcast_to(own, leaf.shape).astype(leaf.dtype), y, r)

    def _pull_back_x(self, x: PyTree, y: PyTree, rows: Rows) -> Callable[[Array, PyTree], PyTree]:
        """(a, b) -> w'(x)^T a / n + r'(x)^T b."""
        pull_back = jax.vjp(lambda at: (self._weights(at, y, rows), self._penalties(at, y)), x)[1]
        return lambda of_weights, of_penalties: pull_back((of_weights, of_penalties))[0]


class LinearModel(Problem):
    """A `Problem` whose lower level is a `WeightedLoss`; made by `linear_model`. Its upper level may be any function of
    (x, y, data), which is differentiated automatically; `data["train"]` and `data["held_out"]` are `Rows`.
    The fields `upper`, `regularizer` and `lower_regularizer` are those of every `Problem`.

    Example: `linear_model`.
    """

    lower: WeightedLoss
    spectrum: Spectrum | None = None
    """The spectrum of the training features, if there is a preconditioner."""

    def check_start(self, x: PyTree, y: PyTree) -> None:
        outputs = len(_matrix(y.weights if isinstance(y, Linear) else y))
        for loss in (self.lower, self.upper):
            if isinstance(loss, WeightedLoss) and isinstance(loss.loss, Softmax):
                self._require_classes(loss.part, outputs)

    def _require_classes(self, part: str, classes: int) -> None:
        """Raise an error for targets without a row of scores in y: they would count as no class at all."""
        rows = self.data[part]
        if isinstance(rows, HostRows):
            if rows.source.classes != classes:
                require_usable(part, rows, classes)
            return
        fine = (rows.targets >= 0) & (rows.targets < classes)
        if isinstance(fine, jax.core.Tracer) or bool(jnp.all(fine)):
            return
        row = int(jnp.argmin(fine))
        raise ValueError(
            f"{part}: targets must be classes 0..{classes - 1}, as y0 has {classes} rows, got {rows.targets[row]} in "
            f"row {row}."
        )

    def grad_upper(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        if not isinstance(self.upper, WeightedLoss):
            return super().grad_upper(x, y)
        return self.upper.gradient_x(x, y, self.data), self.upper.gradient(x, y, self.data)

    def grad_lower(self, x: PyTree, y: PyTree) -> PyTree:
        return self.lower.gradient(x, y, self.data)

    def grad_lower_x(self, x: PyTree, y: PyTree) -> PyTree:
        return self.lower.gradient_x(x, y, self.data)

    def hvp(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return self.lower.hessian(x, y, self.data)

    def cross(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree]:
        return self.lower.cross(x, y, self.data)

    def preconditioner(self, x: PyTree, y: PyTree) -> Callable[[PyTree], PyTree] | None:
        """See `proxbi.glm.spectrum`. None without a spectrum, or if the penalty is not one number for all of y: solvers
        then learn a preconditioner.
        """
        spectrum, ridge = self.spectrum, self.lower.ridge(x)
        if spectrum is None or isinstance(ridge, Linear) or jnp.ndim(ridge) > 0:
            return None
        return partial(_preconditioned, spectrum.inverse(self.lower.total_curvature(x, y, self.data), ridge))


def _preconditioned(inverse: Inverse, r: PyTree) -> PyTree:
    if isinstance(r, Linear):
        bias = inverse.of_bias(r.bias.reshape(-1)).reshape(r.bias.shape)
        return Linear(_preconditioned(inverse, r.weights), bias)
    return inverse.of_weights(_matrix(r)).reshape(r.shape)


def linear_model(
    train: tuple[Any, Any],
    held_out: tuple[Any, Any],
    loss: Literal["softmax", "logistic", "squared"] | Loss,
    *,
    weights: Any = 1.0,
    ridge: Any = 0.0,
    regularizer: Regularizer | None = None,
    preconditioned: bool = False,
    layout: Layout | None = None,
    dtype: Any = None,
) -> LinearModel:
    r"""The problem $\min_x f(x, y^*(x)) + h(x)$ whose lower level fits a weighted linear model to the training rows,

    $$g(x, y) = \tfrac1n\sum_i w_i(x)\,\ell(W z_i + b, t_i) + \tfrac12\langle r(x), y^2\rangle, \qquad
      f(x, y) = \tfrac1m\sum_j \ell(W z_j + b, t_j)\ \text{over the rows held out.}$$

    The oracles are faster than automatic differentiation of these formulas, and equal up to rounding: see
    `proxbi.glm.layouts`.

    **Arguments:**

    - `train`, `held_out`: pairs (features, targets). Features are rows by features, an array or a BCOO. Targets are
      classes 0, 1, ... (softmax), numbers in [0, 1] (logistic) or any numbers (squared), one or several per row.
    - `loss`: a name, or a `Loss`.
    - `weights`: w, one for each training row: an array, or a function of x that returns it.
    - `ridge`: r, a number, an array or a function of x: a scalar penalises all of y; an array is broadcast against W,
      so `(features,)` is one penalty per feature and `(outputs, 1)` one per class, without a penalty on the bias; a
      `Linear` gives both. g must be strongly convex: penalise W, or have more rows than features.
    - `regularizer`: h.
    - `preconditioned`: compute the spectrum of the training features once, as a preconditioner for the default solver,
      which then needs fewer Hessian products. Only for a `ridge` of one number and up to 2,048 dense features.
    - `layout`, `dtype`: of the features; see `design`.

    y is W, outputs by features (or `(features,)` for one output), or `Linear(W, b)` for a model with a bias.
    Softmax does not change when one number is added to all biases: y stays where it starts in that direction.

    >>> from proxbi import Box, minimize
    >>> Z, t = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), jnp.array([1.0, 2.0, 9.0])
    >>> problem = linear_model((Z, t), (Z[:2], t[:2]), "squared", weights=jax.nn.sigmoid, ridge=0.01,
    ...                        regularizer=Box(-3.0, 3.0))
    >>> print(minimize(problem, jnp.zeros(3), jnp.zeros(2)).x)  # row 2 is wrong, the others are right
    [ 3.  3. -3.]
    """
    known = LOSSES.get(loss) if isinstance(loss, str) else loss
    if not isinstance(known, Loss):
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, or a Loss, got {loss!r}.")
    data = {
        "train": rows("train", *train, known, layout, dtype),
        "held_out": rows("held_out", *held_out, known, layout, dtype),
    }
    lower = WeightedLoss(known, _of_x(weights), _of_x(ridge), "train")
    upper = WeightedLoss(known, _of_x(1.0), _of_x(0.0), "held_out")
    made = LinearModel(upper, lower, Zero() if regularizer is None else regularizer, data)
    return replace(made, spectrum=spectrum(data["train"].design)) if preconditioned else made


def rows(name: str, features: Any, targets: Any, loss: Loss, layout: Layout | None = None, dtype: Any = None) -> Rows:
    """`Rows` in the layout of this device; errors call them `name`."""
    made = design(features, layout=layout, dtype=dtype)
    classes = isinstance(loss, Softmax)
    _require_32_bits(name, targets)
    targets = jnp.asarray(targets)
    if classes and not jnp.issubdtype(targets.dtype, jnp.integer):
        raise TypeError(f"{name}: targets must be classes 0, 1, ... for softmax, got {targets.dtype}.")
    if len(targets) != made.rows:
        raise ValueError(f"{name} has {made.rows} rows of features, but {len(targets)} targets.")
    if classes:
        _check.require(targets >= 0, f"{name}: targets must be classes 0, 1, ..., got {targets.min()}.")
        return Rows(made, targets)
    return Rows(made, _check.as_float(targets).reshape(made.rows, -1))


def _require_32_bits(name: str, targets: Any) -> None:
    """Raise an error for integers that JAX would wrap around, as it does without x64."""
    if isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.size:
        most = np.iinfo(jax.dtypes.canonicalize_dtype(targets.dtype)).max
        _check.require(targets <= most, f"{name}: targets must be at most {most:,}, got {targets.max():,}.")


def _of_x(given: Any) -> OfX:
    """A function of x, as a pytree; anything else counts as constant."""
    if not callable(given):
        return Partial(_constant, jax.tree.map(_check.as_float, given))
    return given if not jax.tree_util.all_leaves([given]) else Partial(given)


def _constant(value: Any, x: PyTree) -> Any:
    return value


def _matrix(weights: Array) -> Float[Array, "outputs features"]:
    return weights[None] if weights.ndim == 1 else weights


def _sum(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


def _times(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.multiply, a, b)
