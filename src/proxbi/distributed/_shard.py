"""`shard`: a problem whose rows are spread over the devices of a mesh."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO
from jax.sharding import Mesh
from jaxtyping import PyTree

from proxbi.distributed import _layout
from proxbi.distributed._digest import described
from proxbi.distributed._parts import OfRows, SpreadRows, on_rows
from proxbi.distributed._place_of_rows import RowPlace
from proxbi.distributed._problems import LinearModelOnMesh, ProblemOnMesh
from proxbi.glm import Design, LinearModel, WeightedLoss
from proxbi.glm.losses import Loss
from proxbi.glm.problem import Rows as LabelledRows
from proxbi.glm.streamed import classes_of, targets_of
from proxbi.problem import Problem
from proxbi.regularizers import Regularizer
from proxbi.rows import ArrayRows, IterableRows, Rows, RowSource
from proxbi.rows._batches import checked_rows
from proxbi.rows._host import HostRows
from proxbi.rows._own import has_rows


def shard(problem: Problem, mesh: Mesh | None = None) -> Problem:
    r"""The same problem with its rows spread over the devices of a mesh, for `minimize` and all solvers as they are.

    **Arguments:**

    - `problem`: a `glm.linear_model`, a `glm.streamed_model`, or a `Problem` on `Rows`. Rows in arrays are given in
      full in every process; of a `RowSource` (`np.memmap` and the like) every process reads its own part only, and
      keeps it on its devices.
    - `mesh`: one axis, called `rows`; by default all devices of all processes. Their number must divide 384.

    Features, targets, weights and the entries of x that belong to rows (those along the first axis of a leaf of x0 that
    has as many of them as lower has rows) are spread; y and all that is shaped as y is on all devices. A gradient or a
    product with g_yy costs one all-reduce of the size of y; what is sent does not grow with the number of rows. h must
    be separable.

    x0, y0 and results are as without a mesh. So are checkpoints: a run may go on with another number of devices or
    processes. Numbers agree up to the order of sums: to about 1e-6 in float32, and 1e-12 in float64.

    >>> import jax.numpy as jnp
    >>> from proxbi import Box, glm, minimize
    >>> Z, t = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), jnp.array([1.0, 2.0, 9.0])
    >>> problem = glm.linear_model((Z, t), (Z[:2], t[:2]), "squared", weights=jax.nn.sigmoid, ridge=0.01,
    ...                            regularizer=Box(-3.0, 3.0))
    >>> print(minimize(shard(problem), jnp.zeros(3), jnp.zeros(2)).x)
    [ 3.  3. -3.]
    """
    mesh = _layout.row_mesh() if mesh is None else mesh
    _layout.require_mesh(mesh)
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a proxbi Problem, got {type(problem).__name__}.")
    if isinstance(problem, LinearModelOnMesh | ProblemOnMesh):
        raise ValueError("problem is on a mesh already.")
    _require_separable(problem.regularizer)
    if problem.lower_moves:
        raise TypeError("lower_regularizer must not depend on x on a mesh; give a fixed one such as L1(0.1).")
    if isinstance(problem, LinearModel):
        return _linear_model(problem, mesh)
    if type(problem) is Problem and isinstance(problem.data, Rows):
        return _on_rows(problem, mesh)
    raise TypeError(
        f"problem must be a glm.linear_model, or a Problem on data=Rows(upper=..., lower=...), for a mesh to know its "
        f"rows; got {type(problem).__name__} on {type(problem.data).__name__}."
    )


def _require_separable(h: Regularizer) -> None:
    if not h.separable:
        raise TypeError(
            f"regularizer must be separable on a mesh, and {type(h).__name__} is not: its prox needs all entries of x "
            "in one place. L1, Box, NegativeCappedL1 and all others that are sums over entries will do."
        )


def _linear_model(problem: LinearModel, mesh: Mesh) -> LinearModelOnMesh:
    if not isinstance(problem.upper, WeightedLoss):
        raise TypeError("problem: its upper level must be that of glm.linear_model, and not a function of your own.")
    data = {name: _labelled(name, rows, problem.lower.loss, mesh) for name, rows in problem.data.items()}
    train, held_out = (_count(problem.data[level.part]) for level in (problem.lower, problem.upper))
    places = data[problem.lower.part].design.rows
    layout = RowPlace(mesh, train, places)
    given = {name: _given(rows) for name, rows in problem.data.items()}
    layout.require_alike(data=described(given), regularizer=described(problem.regularizer))

    def level(given: WeightedLoss, count: int) -> WeightedLoss:
        own = data[given.part].design.rows
        weights = OfRows(_spread_leaves(given.weights, mesh, count, own), count, own, train, places)
        return WeightedLoss(given.loss, weights, _spread_leaves(given.ridge, mesh, 0, 0), given.part)

    h = on_rows(_spread_leaves(problem.regularizer, mesh, train, places), train, places)
    return LinearModelOnMesh(
        level(problem.upper, held_out),
        level(problem.lower, train),
        h,
        data,
        lower_regularizer=_spread_leaves(problem.lower_regularizer, mesh, 0, 0),
        spectrum=_spread_leaves(problem.spectrum, mesh, 0, 0),
        layout=layout,
    )


def _labelled(name: str, rows: LabelledRows | HostRows, loss: Loss, mesh: Mesh) -> LabelledRows:
    """Features and targets on the mesh, in the layout that they had."""
    if isinstance(rows, HostRows):
        return _from_host(name, rows, loss, mesh)
    given = rows.design
    if isinstance(given.matrix, BCOO):
        raise TypeError(f"{name}: sparse features cannot be spread over a mesh; give an array.")
    matrix, targets = np.asarray(given.matrix), np.asarray(rows.targets)
    put = _layout.spread(mesh, given.rows, lambda start, stop: (matrix[start:stop], targets[start:stop]))
    places = len(put[0])
    in_blocks = given.transpose is None and given.block < len(given.matrix)
    block = _layout.block_of(given.rows) if in_blocks else places
    transpose = None
    if given.transpose is not None:
        transpose = jax.jit(jnp.transpose, out_shardings=_layout.sharding(mesh, 1))(put[0])
    return LabelledRows(Design(put[0], transpose, places, block), put[1])


def _from_host(name: str, rows: HostRows, loss: Loss, mesh: Mesh) -> LabelledRows:
    """Those of `glm.streamed_model`, of which this process reads its own; features stay in the type that they have."""
    dtype = jnp.zeros(0).dtype

    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        features, targets = map(np.asarray, rows.source.block(start, stop))
        checked_rows(name, (features, targets), np.arange(start, stop), classes_of(loss))
        return features, targets_of(loss, targets, dtype)

    put = _layout.spread(mesh, len(rows), read)
    return LabelledRows(Design(put[0], None, len(put[0]), _layout.block_of(len(rows))), put[1])


def _count(rows: LabelledRows | HostRows) -> int:
    return len(rows) if isinstance(rows, HostRows) else rows.design.rows


def _on_rows(problem: Problem, mesh: Mesh) -> ProblemOnMesh:
    rows: Rows = problem.data
    upper, lower = (_level(name, getattr(rows, name), mesh) for name in ("upper", "lower"))
    layout = RowPlace(mesh, len(lower), lower.places)
    given = [_given(source) for source in (rows.upper, rows.lower)]
    layout.require_alike(data=described(given), regularizer=described(problem.regularizer))
    h = on_rows(_spread_leaves(problem.regularizer, mesh, len(lower), lower.places), len(lower), lower.places)
    return ProblemOnMesh(
        _spread_leaves(problem.upper, mesh, 0, 0),
        _spread_leaves(problem.lower, mesh, 0, 0),
        h,
        eqx.tree_at(lambda r: (r.upper, r.lower), rows, (upper, lower), is_leaf=_is_source),
        lower_regularizer=_spread_leaves(problem.lower_regularizer, mesh, 0, 0),
        layout=layout,
    )


def _level(name: str, source: Any, mesh: Mesh) -> SpreadRows:
    if isinstance(source, ArrayRows):
        host = jax.tree.map(np.asarray, source.rows)
        put = _layout.spread(mesh, len(source), lambda a, b: jax.tree.map(lambda leaf: leaf[a:b], host))
    elif isinstance(source, RowSource) and not isinstance(source, IterableRows):
        put = _layout.spread(mesh, len(source), source.block)
    else:
        raise TypeError(f"{name}: rows of a {type(source).__name__} cannot be spread; give arrays, or rows by number.")
    return SpreadRows(put, len(source))


def _given(source: Any) -> PyTree:
    """The rows of a level, or what tells them from others."""
    if isinstance(source, HostRows | RowSource):
        return jax.tree.map(np.asarray, (source.source if isinstance(source, HostRows) else source).describe())
    return source.rows if isinstance(source, ArrayRows) else source


def _is_source(node: Any) -> bool:
    return isinstance(node, ArrayRows | RowSource)


def _spread_leaves(tree: PyTree, mesh: Mesh, count: int, places: int) -> PyTree:
    """Arrays with an entry for each row padded and spread, as rows are; all others on all devices."""

    def one(leaf: Any) -> Any:
        if count and has_rows(leaf, count):
            host = np.asarray(leaf)
            whole = np.concatenate([host, np.repeat(host[-1:], places - count, axis=0)])
            return _layout.padded(mesh, whole, 0, places)
        return _layout.on_all(mesh, leaf)

    return jax.tree.map(one, tree)
