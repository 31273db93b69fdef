r"""Many penalties at once: the bilevel problem, and a hypergradient that is exact on the face.

    x = (all, lean, own)   the log penalty of unit g is all - lean size_g + own_g, in each fold with its own sizes
    upper level            f(x, u) = mean over the folds of the loss on the validation rows of the fold
    lower level            u*(x), the penalised fits of all folds (`lower.py`)
    h(x)                   = strength / 2 |own|^2: the penalties are pulled to the line all - lean size_g

Sizes are log variances of coefficients, estimated with one penalty for all (`sizes.py`). With lean = 0 they play no
part. Entries of x may be missing: then there is no lean, or all penalties are on the line.

With A the Hessian of the lower level on the face of u* and v = A^-1 f_u there, the derivatives of Phi(x) = f(x, u*(x))
in the penalties a_g of norms and b_j of squares are

    dPhi/da_g = - <v_g, u_g> / |u_g|,      dPhi/db_j = - v_j u_j,

and zero off the face. A is factored as in the lower level, so there is no inner accuracy to control: the solver gets
the gradient, and its rounding error. `AdaptiveProxBiO` does the rest.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from proxbi._minimize import minimize
from proxbi._tree import Scalar
from proxbi.glm.losses import Loss
from proxbi.hypergradient import ControlledHypergradient, Evaluation, Outcome
from proxbi.hypergradient._controlled import unknown
from proxbi.linear_model import lower
from proxbi.linear_model.lower import Blocks, Model, Penalties, Rows
from proxbi.problem import Counts, Problem
from proxbi.regularizers import Box, Regularizer, Separable, SquaredL2, Zero
from proxbi.result import Result, Status
from proxbi.solvers import AdaptiveProxBiO

STEPS, RTOL = 60, 1e-3  # the remaining gain is then far below the change from another draw of the rows
LEAST_SLOPE = 1e-4  # of the loss, for a factor of e in a penalty: x0 may be a solution, where a ratio means nothing
FARTHEST = 10.0  # without h: the log penalties stay so close to their mean, a factor of 20,000
MOST_LEAN = 2.0  # at 1 penalties are those of a step of the EM algorithm; far above 1 they are all or nothing
EXACT = 1e-6  # of the gradient at zero: a less accurate lower level makes the hypergradient rough


class Scheme(NamedTuple):
    """How x becomes penalties: a = fixed + factor exp(all - lean size[unit] + own[unit]), b likewise."""

    norm: Float[Array, "folds blocks"]
    norm_fixed: Float[Array, "folds blocks"]
    norm_unit: Int[Array, "folds blocks"]
    square: Float[Array, "folds entries"]
    square_unit: Int[Array, "folds entries"]
    sizes: Float[Array, "folds units"]

    def penalties(self, x: PyTree) -> Penalties:
        """a and b."""
        log = log_penalties(x, self.sizes)
        norm, square = (jnp.take_along_axis(log, unit, axis=1) for unit in (self.norm_unit, self.square_unit))
        return Penalties(self.norm_fixed + self.norm * jnp.exp(norm), self.square * jnp.exp(square))


def log_penalties(x: PyTree, sizes: Any) -> Any:
    """The log penalty of each unit in each fold."""
    return x["all"] - x.get("lean", 0.0) * sizes + x.get("own", 0.0)


class Data(NamedTuple):
    """The data of the problem."""

    loss: Loss
    rows: Rows
    model: Model | None
    blocks: Blocks
    scheme: Scheme
    importance: Float[Array, " folds"]


class OnFace(ControlledHypergradient):
    """The hypergradient of this problem, to rounding level."""

    smooth: bool = eqx.field(static=True, default=False)

    def init(self, problem: Problem, x: PyTree, y: PyTree) -> Evaluation:
        return unknown(x, y, None)

    def __call__(
        self, problem: Problem, x: PyTree, last: Evaluation, subgradient: PyTree, accuracy: Scalar
    ) -> Evaluation:
        data: Data = problem.data
        penalties, pull_back = jax.vjp(data.scheme.penalties, x)
        fitted = lower.fit(data.loss, data.rows, data.model, data.blocks, penalties, last.y, self.smooth)
        value, slope = jax.value_and_grad(lambda u: _upper(x, u, data))(fitted.u)
        hessian = lower.curvature(data.loss, data.rows, data.model, fitted.u) + jax.vmap(jnp.diag)(penalties.square)
        v, unit = jax.vmap(_adjoint)(hessian, data.blocks, penalties.norm, fitted.u, slope)
        along = jnp.pad(v * unit, ((0, 0), (0, 1)))
        by_block = jax.vmap(lambda one, blocks: jnp.sum(one[blocks.members], axis=1))(along, data.blocks)
        grad = pull_back(Penalties(-by_block, -v * fitted.u))[0]
        left = jnp.max(jnp.where(data.importance > 0, fitted.violation, 0.0))
        size = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grad)))
        finite = jnp.isfinite(value) & jnp.isfinite(size)
        outcome = jnp.where(
            finite, jnp.where(left > EXACT, int(Outcome.ROUGH), int(Outcome.OK)), int(Outcome.NONFINITE)
        )
        return last._replace(
            y=fitted.u,
            v=v,
            grad=grad,
            value=value,
            error=left * size,
            value_error=left * jnp.abs(value),
            terms=size,
            lower_residual=left,
            outcome=outcome.astype(jnp.int32),
            counts=jax.tree.map(jnp.int32, Counts(grad_lower=1, grad_upper=1, cross=1)),
        )


def solve(
    data: Data, x0: PyTree, u0: Float[Array, "folds entries"], strength: float | None, smooth: bool, loss: float
) -> Result:
    """The penalties, from x0; the lower level starts from u0, whose loss is given. Without a strength, `own` has a box
    and no prior.
    """
    parts: dict[str, Regularizer] = {"all": Zero()}
    if "lean" in x0:
        parts["lean"] = Box(0.0, MOST_LEAN)
    if "own" in x0:
        parts["own"] = Box(-FARTHEST, FARTHEST) if strength is None else SquaredL2(np.float64(strength))
    problem = Problem(_upper, _lower, Separable(parts), data)
    solver = AdaptiveProxBiO(OnFace(smooth))
    tol = max(LEAST_SLOPE * loss, np.finfo(float).tiny)
    result = minimize(problem, x0, u0, solver, steps=STEPS, tol=tol, rtol=RTOL, throw=False)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def _upper(x: PyTree, u: Array, data: Data) -> Scalar:
    losses = lower.judged(data.loss, data.rows, u)
    return data.importance @ jnp.where(data.importance > 0, losses, 0.0)


def _lower(x: PyTree, u: Array, data: Data) -> Scalar:
    """The objectives of all folds, added up."""
    return jnp.sum(lower.objective(data.loss, data.rows, data.blocks, data.scheme.penalties(x), u))


def _adjoint(hessian: Array, blocks: Blocks, norm: Array, u: Array, slope: Array) -> tuple[Array, Array]:
    """v on the face, and u_g / |u_g|."""
    curved, on_face, unit = lower.face(hessian, blocks, norm, u)
    v = lower.solve_positive(curved, jnp.where(on_face, slope, 0.0))
    return jnp.where(on_face, v, 0.0), unit
