r"""A preconditioner for the Hessian of a linear model, from the spectrum of its features.

The Hessian is 1/n sum_i w_i l''_i (x) z_i z_i' + r I, with (x) the Kronecker product. It is ill-conditioned because
of the spread of the features, which does not depend on x. With

    Q L Q' = 1/n sum_i z_i z_i'     computed once,     U C U' = 1/n sum_i w_i l''_i     at the present point,

    the first features by features and the second outputs by outputs, it is close to UCU' (x) QLQ' + r I, whose inverse
    maps a matrix R, outputs by features, to U ((U' R Q) / (c l' + r)) Q'. It is exact if all rows have the same
    w l'' (squared loss, equal weights), and in directions where l'' vanishes: a number added to all scores of softmax.
    It costs two products with Q, and no pass over X.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO
from jaxtyping import Array, Float

from proxbi._tree import Scalar
from proxbi.glm.layouts import Design

_MOST_ROWS = 20_000  # evenly spaced: more rows hardly change the spectrum, and computing it takes as long as a run
_MOST_FEATURES = 2_048  # an eigenvalue problem of this size takes seconds, and grows with the third power
_EXACT = jax.lax.Precision.HIGHEST  # accelerators would round the factors


class Spectrum(eqx.Module):
    """The eigenvectors and eigenvalues of 1/n sum_i z_i z_i'."""

    vectors: Float[Array, "features features"]
    values: Float[Array, " features"]

    def inverse(self, curvature: Float[Array, "outputs outputs"], ridge: Scalar) -> "Inverse":
        """The inverse for this total curvature of the rows."""
        values, vectors = jnp.linalg.eigh(curvature)
        values = jnp.maximum(values, 0)
        ridge = jnp.asarray(ridge, values.dtype)
        return Inverse(vectors, values + ridge, self.vectors, jnp.outer(values, self.values) + ridge)


class Inverse(eqx.Module):
    """R -> U ((U' R Q) / (c l' + r)) Q', and for the bias b -> U ((U' b) / (c + r))."""

    outputs: Float[Array, "outputs outputs"]
    of_outputs: Float[Array, " outputs"]
    features: Float[Array, "features features"]
    stiffness: Float[Array, "outputs features"]

    def of_weights(self, r: Float[Array, "outputs features"]) -> Float[Array, "outputs features"]:
        """For the part of W."""
        turned = _product(_product(self.outputs.T, r), self.features)
        return _product(_product(self.outputs, turned / _positive(self.stiffness)), self.features.T)

    def of_bias(self, r: Float[Array, " outputs"]) -> Float[Array, " outputs"]:
        """For the part of b."""
        return _product(self.outputs, _product(self.outputs.T, r) / _positive(self.of_outputs))


def _positive(stiffness: Array) -> Array:
    """Directions without curvature get the smallest curvature that rounding resolves."""
    least = float(jnp.finfo(stiffness.dtype).eps) * jnp.max(stiffness)
    return jnp.where(least > 0, jnp.maximum(stiffness, least), 1)


def _product(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, precision=_EXACT)


def spectrum(design: Design) -> Spectrum | None:
    """The spectrum of the rows, or of some if there are many; None for sparse or very many features."""
    if isinstance(design.matrix, BCOO) or design.features > _MOST_FEATURES:
        return None
    return _spectrum(design.matrix[: design.rows : -(-design.rows // _MOST_ROWS)])


@jax.jit
def _spectrum(rows: Float[Array, "rows features"]) -> Spectrum:
    rows = rows.astype(jnp.float32) if rows.dtype == jnp.bfloat16 else rows
    values, vectors = jnp.linalg.eigh(_product(rows.T, rows) / len(rows))
    return Spectrum(vectors, jnp.maximum(values, 0))
