r"""A preconditioner for the Hessian of a linear model, from the spectrum of its features.

The block of g_yy that belongs to output k is

    H_k = 1/n sum_i w_i l''_kk(i) z_i z_i' + r_k I,

and what makes it ill-conditioned is the spread of the features, which no x changes. With Q L Q' = 1/n sum_i z_i z_i'
computed once, and c_k = 1/n sum_i w_i l''_kk(i), the average curvature at the present point,

    M_k = Q (c_k L + r_k)^-1 Q'

is close to the inverse of H_k, and exact where all rows are alike (squared loss, equal weights). It costs two products
with a features-by-features matrix, no pass over X. Blocks between outputs are left out.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO
from jaxtyping import Array, Float

from proxbi.glm.layouts import Design

_MOST_ROWS = 20_000  # evenly spaced: the spectrum of more is the same, and takes as long as a run to compute
_MOST_FEATURES = 2_048  # an eigenvalue problem of this size takes seconds, and grows with the third power
_EXACT = jax.lax.Precision.HIGHEST  # accelerators would round the factors


class Spectrum(eqx.Module):
    """The eigenvectors and eigenvalues of 1/n sum_i z_i z_i'."""

    vectors: Float[Array, "features features"]
    values: Float[Array, " features"]

    def inverse(
        self, r: Float[Array, "outputs features"], curvature: Float[Array, " outputs"], ridge: Float[Array, " outputs"]
    ) -> Float[Array, "outputs features"]:
        """M_k r_k for each output."""
        stiffness = curvature[:, None] * self.values + ridge[:, None]
        # Along directions without any curvature nothing is known: they count as the flattest that rounding tells apart.
        least = float(jnp.finfo(r.dtype).eps) * jnp.max(stiffness)
        stiffness = jnp.where(least > 0, jnp.maximum(stiffness, least), 1)
        turned = jnp.dot(r, self.vectors, precision=_EXACT) / stiffness
        return jnp.dot(turned, self.vectors.T, precision=_EXACT)


def spectrum(design: Design) -> Spectrum | None:
    """Of the rows, or of a part of many; None for sparse features, and for very many."""
    if isinstance(design.matrix, BCOO) or design.features > _MOST_FEATURES:
        return None
    return _spectrum(design.matrix[: design.rows : -(-design.rows // _MOST_ROWS)])


@jax.jit
def _spectrum(rows: Float[Array, "rows features"]) -> Spectrum:
    rows = rows.astype(jnp.float32) if rows.dtype == jnp.bfloat16 else rows
    values, vectors = jnp.linalg.eigh(jnp.dot(rows.T, rows, precision=_EXACT) / len(rows))
    return Spectrum(vectors, jnp.maximum(values, 0))
