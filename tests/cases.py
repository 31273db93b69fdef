"""The lists that the tests run over. A new regularizer gets the whole suite of its kind from one row here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax

import prox_reference as ref
import proxbi
import proxbi.regularizers as pr
from proxbi import analytic
from proxbi.solvers import skeleton

# === Regularizers =====================================================================================================

ENTRIES = 48  # the size of x in the rows of separable regularizers: large enough for all special points at once
WEIGHTS = np.linspace(0.2, 2.0, ENTRIES)
NORMAL = np.array([1.0, -2.0, 0.5, 0.0, 3.0, 1.0])
LABELS = np.array([7, 3, 7, 7, 3, -1])


def nothing(*_: Any, **__: Any) -> list[float]:
    """No special points."""
    return []


@dataclass(frozen=True)
class Row:
    """One regularizer: how to make it, what it should be, and where it is delicate.

    Separable rows have a `term` (one for each entry in the last axis), the others a `value`; both are NumPy, from
    `prox_reference`. Rows that are not separable also have a `shape` and a `slow` minimiser. Parameters are ranges from
    which examples are drawn; all of them are traced in the tests.
    """

    name: str
    make: Callable[..., pr.Regularizer]
    parameters: dict[str, tuple[float, float]]
    term: Callable[..., Any] | None = None
    kinks: Callable[..., list[float]] = nothing
    thresholds: Callable[..., list[float]] = (
        nothing  # (step, **parameters): magnitudes where the prox has a tie or kink
    )
    steps: Callable[..., list[float]] = nothing  # where the closed form changes regime
    value: Callable[..., Any] | None = None
    slow: Callable[..., Any] | None = None  # (x, step, **parameters)
    members: Callable[..., Any] | None = None  # (rng, x, **parameters): random points of the set
    shape: tuple[int, ...] = (ENTRIES,)
    largest: float = 1e8  # the largest entries of x, for separable rows
    convex: bool = True
    indicator: bool = False
    weak: Callable[..., float] | None = None  # the constant of weak convexity
    unique: Callable[..., bool] = lambda x: True  # whether the minimiser is, for rows that are not separable
    splits: bool = True  # whether x may be cut in two leaves with the same result
    symmetries: tuple[str, ...] = ()  # under "sign", "permutation", "orthogonal"

    @property
    def separable(self) -> bool:
        """Whether h is a sum over the entries."""
        return self.term is not None

    def reference(self, u: Any, **parameters: float) -> Any:
        """h(u), over the trailing axes."""
        if self.term is not None:
            return self.term(u, **parameters).sum(axis=-1)
        assert self.value is not None
        return self.value(u, **parameters)


@dataclass(frozen=True)
class Example:
    """What one property check is run on."""

    parameters: dict[str, float]
    step: float
    x: Any
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        """A generator of this example's own."""
        return np.random.default_rng(self.seed + 1)


def examples(row: Row) -> st.SearchStrategy[Example]:
    """Examples of a row, of which hypothesis chooses the seed only.

    Left to draw each number, it varies the points of a few steps and parameters, and whole regimes of the closed forms
    are never visited (`test_prox_mutations.py` noticed).
    """
    return st.integers(0, 2**32 - 1).map(lambda seed: random_example(row, seed))


def random_example(row: Row, seed: int) -> Example:
    """Parameters in their ranges, a step from 0.01 to 20 or on a boundary of regimes, and points with all ties."""
    rng = np.random.default_rng(seed)
    parameters = {
        name: float(rng.choice([low, high, rng.uniform(low, high)], p=[0.05, 0.05, 0.9]))
        for name, (low, high) in row.parameters.items()
    }
    special = [step for step in row.steps(**parameters) if 1e-2 <= step <= 20]
    steps = [rng.choice(special or [1.0]), rng.choice([0.01, 1.0, 20.0]), np.exp(rng.uniform(np.log(0.01), np.log(20)))]
    step = float(rng.choice(steps, p=[0.25, 0.1, 0.65]))
    x = _entries(row, parameters, step, rng) if row.separable else _array(row.shape, rng)
    return Example(parameters, step, x, seed)


def usual_example(row: Row, seed: int = 0, step: float = 0.7, scale: float = 2.0) -> Example:
    """Parameters in the middle of their ranges, and points of moderate size in general position."""
    parameters = {name: 0.4 * low + 0.6 * high for name, (low, high) in row.parameters.items()}
    return Example(parameters, step, scale * np.random.default_rng(seed).normal(size=row.shape), seed)


def _entries(row: Row, parameters: dict[str, float], step: float, rng: np.random.Generator) -> Any:
    delicate = np.array([*row.kinks(**parameters), *row.thresholds(step, **parameters)])
    delicate = np.concatenate([delicate, delicate * (1 + 1e-6), delicate * (1 - 1e-6)])
    points = np.concatenate([[0.0, 1e-8, -1e-8, row.largest, -row.largest], delicate, -delicate])
    assert points.size <= ENTRIES - 10, "ENTRIES is too small for the special points of this row"
    return np.append(
        points, rng.normal(size=ENTRIES - points.size) * 10 ** rng.uniform(-1, 1.5, size=ENTRIES - points.size)
    )


def _array(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    x = 2 * rng.normal(size=shape)
    kinds = [np.zeros(shape), np.sign(x), x * (rng.random(shape) < 0.4), 1e6 * x, 1e-6 * x]
    return kinds[rng.integers(len(kinds))] if rng.random() < 0.5 else x


STRENGTH = (0.05, 3.0)


def _signed(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.choice([-1.0, 1.0], size=shape)


def _on_simplex(rng: np.random.Generator, x: Any, scale: float) -> Any:
    spread = [rng.dirichlet(np.full(x.size, alpha), size=60) for alpha in (0.1, 1.0, 10.0)]
    return scale * np.concatenate([*spread, np.eye(x.size)])


def _in_l1_ball(rng: np.random.Generator, x: Any, radius: float) -> Any:
    points = _on_simplex(rng, x, radius)
    return points * _signed(rng, points.shape) * rng.choice([0.5, 1.0], size=(len(points), 1))


def _in_l2_ball(rng: np.random.Generator, x: Any, radius: float) -> Any:
    points = rng.normal(size=(200, x.size))
    return radius * points / np.linalg.norm(points, axis=1, keepdims=True) * rng.choice([0.5, 1.0], size=(200, 1))


def _on_hyperplane(rng: np.random.Generator, x: Any, offset: float, depth: float = 0.0) -> Any:
    points = x + rng.normal(size=(200, x.size)) * (0.1 + np.abs(x).max())
    depths = depth * np.abs(rng.normal(size=200))
    return points - ((points @ NORMAL - offset + depths) / (NORMAL @ NORMAL))[:, None] * NORMAL


def _sparse(rng: np.random.Generator, x: Any, k: int) -> Any:
    kept = np.argsort(rng.random((200, x.size)), axis=1) < k
    return kept * (x + rng.choice([0.0, 1.0], size=(200, 1)) * rng.normal(size=(200, x.size)))


def _psd(rng: np.random.Generator, x: Any) -> Any:
    factors = rng.normal(size=(200, *x.shape)) * np.sqrt(0.1 + np.abs(x).max())
    return factors @ np.swapaxes(factors, -1, -2)


def _low_rank(rng: np.random.Generator, x: Any, rank: int) -> Any:
    left = rng.normal(size=(200, x.shape[0], rank)) * np.sqrt(0.1 + np.abs(x).max())
    return left @ rng.normal(size=(200, rank, x.shape[1]))


def _norm(u: Any) -> Any:
    return np.linalg.norm(u, axis=-1)


def _group_norms(u: Any, strength: float) -> Any:
    return strength * sum(_norm(u[..., label == LABELS]) for label in np.unique(LABELS))


CONVEX = [
    Row("zero", pr.Zero, {}, term=lambda u: 0 * u, symmetries=("sign", "permutation")),
    Row(
        "l1",
        pr.L1,
        {"strength": STRENGTH},
        term=lambda u, strength: strength * np.abs(u),
        thresholds=lambda step, strength: [step * strength],
        symmetries=("sign", "permutation"),
    ),
    Row(
        "weighted l1",
        lambda strength: pr.L1(strength * WEIGHTS),
        {"strength": STRENGTH},
        term=lambda u, strength: strength * np.abs(u) * WEIGHTS,
        splits=False,
        symmetries=("sign",),
    ),
    Row(
        "squared l2",
        pr.SquaredL2,
        {"strength": STRENGTH},
        term=lambda u, strength: strength * u**2 / 2,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "elastic net",
        pr.ElasticNet,
        {"strength": STRENGTH, "l1_ratio": (0.0, 1.0)},
        term=ref.elastic_net,
        thresholds=lambda step, strength, l1_ratio: [step * strength * l1_ratio],
        symmetries=("sign", "permutation"),
    ),
    Row(
        "huber",
        pr.Huber,
        {"strength": STRENGTH, "delta": (0.1, 3.0)},
        term=ref.huber,
        kinks=lambda strength, delta: [delta],
        thresholds=lambda step, strength, delta: [delta * (1 + step * strength)],
        symmetries=("sign", "permutation"),
    ),
    Row(
        "l2",
        pr.L2,
        {"strength": STRENGTH},
        value=lambda u, strength: strength * _norm(u),
        slow=lambda x, step, strength: ref.radial(lambda u: strength * _norm(u), x, step),
        shape=(6,),
        symmetries=("sign", "permutation", "orthogonal"),
    ),
    Row(
        "group l2",
        lambda strength: pr.GroupL2(strength, LABELS),
        {"strength": STRENGTH},
        value=_group_norms,
        slow=lambda x, step, strength: ref.grouped(x, step, strength, LABELS),
        shape=(6,),
        splits=False,
        symmetries=("sign",),
    ),
    Row(
        "group l2, rows",
        pr.GroupL2,
        {"strength": STRENGTH},
        value=lambda u, strength: strength * _norm(u).sum(axis=-1),
        slow=lambda x, step, strength: ref.grouped(x, step, strength, np.arange(8).reshape(4, 2) // 2),
        shape=(4, 2),
        symmetries=("sign",),
    ),
]

NONCONVEX = [
    Row(
        "negative capped l1",
        pr.NegativeCappedL1,
        {"strength": STRENGTH, "cap": (0.2, 4.0)},
        term=lambda u, strength, cap: -ref.capped(u, strength, cap),
        kinks=lambda strength, cap: [cap],
        thresholds=lambda step, strength, cap: [abs(cap - step * strength)],
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "capped l1",
        pr.CappedL1,
        {"strength": STRENGTH, "cap": (0.2, 4.0)},
        term=ref.capped,
        kinks=lambda strength, cap: [cap],
        thresholds=lambda step, strength, cap: [cap + step * strength / 2, sqrt(2 * step * strength * cap)],
        steps=lambda strength, cap: [2 * cap / strength],
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "l0",
        pr.L0,
        {"strength": STRENGTH},
        term=ref.l0,
        thresholds=lambda step, strength: [sqrt(2 * step * strength)],
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "mcp",
        pr.MCP,
        {"strength": STRENGTH, "theta": (0.3, 5.0)},
        term=ref.mcp,
        kinks=lambda strength, theta: [strength * theta],
        thresholds=lambda step, strength, theta: [step * strength, strength * sqrt(theta * step)],
        steps=lambda strength, theta: [theta, theta * (1 - 1e-9), theta * (1 + 1e-9)],
        weak=lambda strength, theta: 1 / theta,
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "scad",
        pr.SCAD,
        {"strength": STRENGTH, "a": (2.1, 6.0)},
        term=ref.scad,
        kinks=lambda strength, a: [strength, a * strength],
        thresholds=lambda step, strength, a: [
            strength * (1 + step),
            strength * (a + 1 + step) / 2,
            strength * sqrt(step * (a + 1)),
        ],
        steps=lambda strength, a: [a - 1, (a - 1) * (1 - 1e-9), a + 1],
        weak=lambda strength, a: 1 / (a - 1),
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "log-sum",
        pr.LogSum,
        {"strength": STRENGTH, "epsilon": (0.05, 3.0)},
        term=ref.log_sum,
        thresholds=lambda step, strength, epsilon: [
            ref.log_sum_threshold(step * strength, epsilon),
            abs(2 * sqrt(step * strength) - epsilon),
            step * strength / epsilon,
        ],
        steps=lambda strength, epsilon: [epsilon**2 / strength],
        weak=lambda strength, epsilon: strength / epsilon**2,
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "lp",
        pr.Lp,
        {"strength": STRENGTH, "p": (0.02, 0.98)},
        term=ref.power,
        thresholds=lambda step, strength, p: [ref.power_threshold(step * strength, p)],
        convex=False,
        symmetries=("sign", "permutation"),
    ),
]

SETS = [
    Row(
        "box",
        pr.Box,
        {"lower": (-3.0, -0.1), "upper": (0.1, 3.0)},
        term=ref.between,
        kinks=lambda lower, upper: [lower, upper],
        indicator=True,
    ),
    Row("nonnegative", pr.NonNegative, {}, term=lambda u: ref.between(u, 0, np.inf), indicator=True),
    Row(
        "linf ball",
        pr.LInfBall,
        {"radius": (0.1, 3.0)},
        term=lambda u, radius: ref.between(u, -radius, radius),
        kinks=lambda radius: [radius],
        indicator=True,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "outside an interval",
        pr.OutsideInterval,
        {"lower": (-3.0, -0.1), "upper": (0.1, 3.0)},
        term=ref.outside,
        kinks=lambda lower, upper: [lower, upper, (lower + upper) / 2],
        indicator=True,
        convex=False,
    ),
    Row(
        "simplex",
        pr.Simplex,
        {"scale": (0.1, 5.0)},
        value=ref.simplex,
        slow=lambda x, step, scale: ref.project_simplex(x, scale),
        members=_on_simplex,
        shape=(6,),
        indicator=True,
        symmetries=("permutation",),
    ),
    Row(
        "l1 ball",
        pr.L1Ball,
        {"radius": (0.1, 5.0)},
        value=lambda u, radius: ref.feasible(np.abs(u).sum(axis=-1) - radius, radius),
        slow=lambda x, step, radius: ref.project_l1(x, radius),
        members=_in_l1_ball,
        shape=(6,),
        indicator=True,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "l2 ball",
        pr.L2Ball,
        {"radius": (0.1, 5.0)},
        value=lambda u, radius: ref.feasible(_norm(u) - radius, radius),
        slow=lambda x, step, radius: ref.project_l2(x, radius),
        members=_in_l2_ball,
        shape=(6,),
        indicator=True,
        symmetries=("sign", "permutation", "orthogonal"),
    ),
    Row(
        "halfspace",
        lambda offset: pr.Halfspace(NORMAL, offset),
        {"offset": (-3.0, 3.0)},
        value=lambda u, offset: ref.feasible(u @ NORMAL - offset, np.abs(u).max(axis=-1)),
        slow=lambda x, step, offset: ref.project_halfspace(x, NORMAL, offset),
        members=lambda rng, x, offset: _on_hyperplane(rng, x, offset, depth=1.0),
        shape=(6,),
        indicator=True,
        splits=False,
    ),
    Row(
        "hyperplane",
        lambda offset: pr.Hyperplane(NORMAL, offset),
        {"offset": (-3.0, 3.0)},
        value=lambda u, offset: ref.feasible(np.abs(u @ NORMAL - offset), np.abs(u).max(axis=-1)),
        slow=lambda x, step, offset: ref.project_hyperplane(x, NORMAL, offset),
        members=_on_hyperplane,
        shape=(6,),
        indicator=True,
        splits=False,
    ),
    Row(
        "sparse vectors",
        lambda: pr.SparseSet(2),
        {},
        value=lambda u: np.where((u != 0).sum(axis=-1) <= 2, 0.0, np.inf),
        slow=lambda x, step: ref.project_sparse(x, 2),
        members=lambda rng, x: _sparse(rng, x, 2),
        unique=lambda x: len(set(np.sort(np.abs(x))[-3:-1])) == 2,
        shape=(6,),
        indicator=True,
        convex=False,
        symmetries=("sign", "permutation"),
    ),
]

MATRICES = [
    Row(
        "nuclear",
        pr.Nuclear,
        {"strength": STRENGTH},
        value=lambda u, strength: strength * ref.singular_values(u).sum(axis=-1),
        slow=lambda x, step, strength: x - ref.project_spectral(x, step * strength),
        shape=(4, 3),
        splits=False,
        symmetries=("sign", "orthogonal"),
    ),
    Row(
        "rank ball",
        lambda: pr.RankBall(2),
        {},
        value=lambda u: ref.rank_ball(u, 2),
        slow=lambda x, step: ref.project_rank(x, 2),
        members=lambda rng, x: _low_rank(rng, x, 2),
        unique=lambda x: bool(np.diff(ref.singular_values(x))[1] < -1e-3 * np.abs(x).max()),
        shape=(3, 4),
        indicator=True,
        convex=False,
        splits=False,
        symmetries=("sign", "orthogonal"),
    ),
    Row(
        "psd",
        pr.PSD,
        {},
        value=ref.psd,
        slow=lambda x, step: ref.project_psd(x),
        members=_psd,
        shape=(3, 3),
        indicator=True,
        splits=False,
    ),
]

COMPOSITES = [
    Row(
        "scaled mcp",
        lambda factor, strength, theta: factor * pr.MCP(strength, theta),
        {"factor": (0.1, 5.0), "strength": STRENGTH, "theta": (0.3, 5.0)},
        term=lambda u, factor, strength, theta: factor * ref.mcp(u, strength, theta),
        kinks=lambda factor, strength, theta: [strength * theta],
        steps=lambda factor, strength, theta: [theta / factor],
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "l1 and box",
        lambda strength, lower, upper: pr.L1(strength) + pr.Box(lower, upper),
        {"strength": STRENGTH, "lower": (-3.0, -0.5), "upper": (0.75, 2.0)},  # usually -1.5 and 1.5: exact in float32
        term=lambda u, strength, lower, upper: strength * np.abs(u) + ref.between(u, lower, upper),
        kinks=lambda strength, lower, upper: [lower, upper],
        thresholds=lambda step, strength, lower, upper: [step * strength],
    ),
    Row(
        "l1 and nonnegative",
        lambda strength: pr.NonNegative() + pr.L1(strength),
        {"strength": STRENGTH},
        term=lambda u, strength: strength * np.abs(u) + ref.between(u, 0, np.inf),
        thresholds=lambda step, strength: [step * strength],
        symmetries=("permutation",),
    ),
    Row(
        "group l2 and nonnegative",
        lambda strength: pr.GroupL2(strength, LABELS) + pr.NonNegative(),
        {"strength": STRENGTH},
        value=lambda u, strength: _group_norms(u, strength) + ref.between(u, 0, np.inf).sum(axis=-1),
        slow=lambda x, step, strength: ref.grouped(np.maximum(x, 0), step, strength, LABELS),
        shape=(6,),
        splits=False,
    ),
    Row(
        "shifted capped l1",
        lambda strength, cap, offset: pr.CappedL1(strength, cap).shift(np.full(ENTRIES, 1.0) * offset),
        {"strength": STRENGTH, "cap": (0.2, 4.0), "offset": (-2.0, 2.0)},
        term=lambda u, strength, cap, offset: ref.capped(u - offset, strength, cap),
        kinks=lambda strength, cap, offset: [offset, offset + cap, offset - cap],
        convex=False,
        splits=False,
    ),
    Row(
        "envelope of l0",
        lambda strength, smoothing: pr.MoreauEnvelope(pr.L0(strength), smoothing),
        {"strength": STRENGTH, "smoothing": (0.1, 3.0)},
        term=lambda u, strength, smoothing: np.minimum(u**2 / (2 * smoothing), strength),
        kinks=lambda strength, smoothing: [sqrt(2 * smoothing * strength)],
        thresholds=lambda step, strength, smoothing: [sqrt(2 * (step + smoothing) * strength)],
        convex=False,
        symmetries=("sign", "permutation"),
    ),
    Row(
        "envelope of l1",
        lambda strength, smoothing: pr.MoreauEnvelope(pr.L1(strength), smoothing),
        {"strength": STRENGTH, "smoothing": (0.1, 3.0)},
        term=lambda u, strength, smoothing: ref.huber(u, 1 / smoothing, strength * smoothing),
        kinks=lambda strength, smoothing: [strength * smoothing],
        symmetries=("sign", "permutation"),
    ),
    Row(
        "conjugate of huber",
        lambda strength, delta: pr.Huber(strength, delta).conjugate(),
        {"strength": (0.5, 3.0), "delta": (0.5, 3.0)},
        term=lambda u, strength, delta: u**2 / (2 * strength) + ref.between(u, -strength * delta, strength * delta),
        kinks=lambda strength, delta: [strength * delta],
        largest=10.0,  # Moreau's identity rounds at the size of x, and the value is infinite outside
        symmetries=("sign", "permutation"),
    ),
    Row(
        "conjugate of the l2 ball",
        lambda radius: pr.L2Ball(radius).conjugate(),
        {"radius": (0.1, 3.0)},
        value=lambda u, radius: radius * _norm(u),
        slow=lambda x, step, radius: ref.radial(lambda u: radius * _norm(u), x, step),
        shape=(6,),
        symmetries=("sign", "permutation", "orthogonal"),
    ),
]

REGULARIZERS = [*CONVEX, *NONCONVEX, *SETS, *MATRICES, *COMPOSITES]


# === The core: problems, hypergradients, solvers ======================================================================


def flat(tree: Any) -> Any:
    """All entries of a pytree as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def follow_upper(x: Any, y: Any, data: dict[str, Any]) -> Any:
    return 0.5 * jnp.sum((flat(y) - data["d"]) ** 2)


def follow_lower(x: Any, y: Any, data: dict[str, Any]) -> Any:
    gap = flat(y) - flat(x)
    return 0.5 * gap @ data["A"] @ gap


class Follow(NamedTuple):
    """f = |y - d|^2 / 2, g = (y - x)'A(y - x) / 2, so y*(x) = x and Phi(x) = |x - d|^2 / 2; h = strength |x|_1 or 0.

    All calls share the functions above, so one compiled program serves all values of A, d and strength.
    """

    problem: proxbi.Problem
    x0: Any
    y0: Any
    a: np.ndarray
    d: np.ndarray
    strength: float

    def minimiser(self, pull: np.ndarray | None = None) -> np.ndarray:
        """The x with 0 in pull (x - d) + dh(x), by plain steps in NumPy; `pull` is the identity for the true one."""
        pull = np.eye(len(self.d)) if pull is None else pull
        x = np.zeros_like(self.d)
        for _ in range(3000):
            forward = x - 0.5 * pull @ (x - self.d)
            x = np.sign(forward) * np.maximum(np.abs(forward) - 0.5 * self.strength, 0)
        return x


def follow(
    strength: float = 0.0,
    *,
    lower_regularizer: Any = None,
    dtype: Any = float,
    trees: bool = False,
    seed: int = 0,
    spectrum: Sequence[float] = (1.0, 0.9, 0.8, 0.7),
) -> Follow:
    """The problem every solver must solve, in vectors or in nested dicts; h is `Zero` where strength is 0."""
    draw = np.random.default_rng(seed)
    rotation = np.linalg.qr(draw.normal(size=(4, 4)))[0]
    a = rotation @ np.diag(spectrum) @ rotation.T
    a, d = (a + a.T) / 2, np.array([1.5, -0.8, 0.05, 0.4])
    data = {"A": jnp.asarray(a, dtype), "d": jnp.asarray(d, dtype)}
    h = pr.L1(strength) if strength else pr.Zero()
    x0, y0 = jnp.zeros(4, dtype), jnp.ones(4, dtype)
    if trees:
        x0 = {"a": jnp.zeros((), dtype), "b": jnp.zeros(3, dtype)}
        y0 = {"u": jnp.ones((2, 1), dtype), "w": [jnp.ones((), dtype), jnp.ones(1, dtype)]}
    problem = proxbi.Problem(follow_upper, follow_lower, h, data, lower_regularizer=lower_regularizer)
    return Follow(problem, x0, y0, a, d, strength)


PROBLEMS: dict[str, Callable[[float], analytic.Analytic]] = {
    "A spectral quadratic": analytic.spectral_quadratic,
    "B KL dial": analytic.kl_dial,
    "D smooth, not quadratic": analytic.smooth_nonquadratic,
    "E ridge": analytic.ridge_hyperparameters,
}
"""Problems with closed forms, by their condition number."""


HYPERGRADIENTS: dict[str, Callable[[float], proxbi.hypergradient.Hypergradient]] = {
    "AID, exact and direct": lambda kappa: proxbi.AID(proxbi.Exact(), proxbi.Direct()),
    "AID, Nesterov and CG": lambda kappa: proxbi.AID(
        proxbi.Nesterov(0.25, _momentum(4 * kappa), int(120 * sqrt(kappa))), proxbi.CG(500, 1e-13)
    ),
    "AID, accelerated gradient": lambda kappa: proxbi.AID(proxbi.AcceleratedGradient(0.0), proxbi.CG(500, 1e-13)),
    "ITD, gradient descent": lambda kappa: proxbi.ITD(proxbi.GradientDescent(0.25, int(150 * kappa))),
    "ITD, Nesterov": lambda kappa: proxbi.ITD(proxbi.Nesterov(0.25, _momentum(4 * kappa), int(150 * sqrt(kappa)))),
}
"""Estimates that are exact up to 1e-8 on `PROBLEMS`, whose curvature is at most 4, by the condition number."""


def _momentum(kappa: float) -> float:
    return (sqrt(kappa) - 1) / (sqrt(kappa) + 1)


@dataclass(frozen=True)
class SolverRow:
    """One solver: how to make it, and what the suite in `test_contract.py` is to expect of it.

    A biased method converges, but to the x with 0 in `pull(A) (x - d) + dh(x)` of the problem `follow`: say which.
    """

    name: str
    make: Callable[[Any], proxbi.solvers.Solver]  # from the outer step size
    steps: int = 60  # enough to converge to 1e-8 on `follow` with the outer step size 0.5
    proximal: bool = True
    pull: Callable[[np.ndarray], np.ndarray] | None = None  # for biased methods
    modelled: bool = False  # counts dense linear algebra by a model, not by calls
    tuned: bool = True  # takes the outer step size
    lower_regularizer: Any = None  # of the problem that it is to solve
    repeated: bool = False  # much as a row above: waits for the longer suites
    combined: bool = (
        False  # of parts with quick tests of their own, or with a file of tests: slow tests, which run in CI
    )

    def __str__(self) -> str:
        return self.name


def _paper(name: str) -> SolverRow:
    eta = 0.1 if name.endswith("m") else None
    make = partial(proxbi.paper_solver, name, alpha=1.0, T=16, eta=eta, cg_tol=1e-12)
    proximal = name.startswith("proximal")  # without: the same methods with h = 0
    return SolverRow(
        name, lambda beta: make(beta=beta), proximal=proximal, combined=not (proximal and name.endswith("m"))
    )


def _bio(hypergradient: proxbi.hypergradient.Hypergradient) -> Callable[[Any], proxbi.ProxBiO]:
    return lambda beta: proxbi.ProxBiO(hypergradient, beta)


IDLE = pr.Box(-5.0, 5.0)  # a lower regularizer that leaves y*(x) = x where the runs go, so that the minimiser is known
SGD = optax.sgd(0.9, momentum=0.1, nesterov=True)  # made once: each optax optimizer is a program of its own

SOLVERS = [
    *(_paper(name) for name in proxbi.PAPER_SOLVERS),
    SolverRow("AID, Optax", _bio(proxbi.AID(proxbi.Optax(SGD, 20), proxbi.CG(20, 1e-12))), combined=True),
    SolverRow(
        "AID, Neumann", _bio(proxbi.AID(proxbi.GradientDescent(1.0, 16), proxbi.Neumann(1.0, 16))), combined=True
    ),
    SolverRow(
        "AID, one warm CG step",
        _bio(proxbi.AID(proxbi.GradientDescent(1.0, 5), proxbi.CG(1, 1e-12))),
        steps=120,
        combined=True,
    ),
    SolverRow("AID, exact and direct", _bio(proxbi.AID(proxbi.Exact(), proxbi.Direct())), modelled=True, combined=True),
    SolverRow(
        "one step",
        _bio(proxbi.one_step(proxbi.GradientDescent(1.0, 5), 0.9)),
        steps=150,
        pull=lambda a: 0.9 * a,
        combined=True,
    ),
    SolverRow(
        "ITD, truncated",
        _bio(proxbi.ITD(proxbi.GradientDescent(1.0, 5), truncate=2)),
        steps=150,
        pull=lambda a: np.eye(4) - np.linalg.matrix_power(np.eye(4) - a, 2),
        combined=True,
    ),
    SolverRow(
        "AID, accelerated gradient",
        # Not a slow test: with LLVM's optimisations two programs may round its stopping rule to different steps.
        _bio(proxbi.AID(proxbi.AcceleratedGradient(1e-11), proxbi.CG(20, 1e-12))),
    ),
    SolverRow("penalty", lambda beta: proxbi.PenaltyProxBiO(), steps=20, tuned=False, combined=True),
    SolverRow("adaptive", lambda beta: proxbi.AdaptiveProxBiO(), steps=14, tuned=False),
    *(
        replace(row, name=f"{row.name}, lower box", lower_regularizer=IDLE)
        for row in [
            SolverRow("adaptive", lambda beta: proxbi.AdaptiveProxBiO(), steps=14, tuned=False),
            SolverRow("AID", _bio(proxbi.AID(proxbi.GradientDescent(1.0, 16), proxbi.CG(20, 1e-12)))),
            SolverRow("ITD", _bio(proxbi.ITD(proxbi.GradientDescent(1.0, 16)))),
        ]
    ),
    SolverRow("skeleton", lambda beta: skeleton.Skeleton(beta / 5, 0.9), steps=400, combined=True),
    SolverRow("SOBA", lambda beta: proxbi.ProxSOBA(beta / 5, 0.9, average=0.3), steps=400),
    SolverRow(
        "F2SA",
        lambda beta: proxbi.ProxF2SA(beta / 5, 0.9, penalty=3.0, growth=0.0),
        steps=400,
        pull=lambda a: 3.0 * a @ np.linalg.inv(3.0 * a + np.eye(4)),
        combined=True,
    ),
    # Without rows these are SOBA and ProxBiO: what they do with rows is in test_stochastic.py.
    SolverRow("SABA", lambda beta: proxbi.ProxSABA(beta / 5, 0.9), steps=400, repeated=True),
    SolverRow("SRBA", lambda beta: proxbi.ProxSRBA(beta / 5, 0.9), steps=400, repeated=True),
    SolverRow(
        "minibatch",
        lambda beta: proxbi.Minibatch(_bio(proxbi.AID(proxbi.GradientDescent(1.0, 16), proxbi.CG(20, 1e-12)))(beta)),
        repeated=True,
    ),
]
