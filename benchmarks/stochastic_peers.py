r"""Stochastic bilevel methods by others, written from their papers; h by its subgradient, as they would have to do it.

Each is a function (problem, x0, y0, key, numbers) -> (state, step, rows) with a state that has x first, a step
(state, t, key) -> state, and the rows that a step looks at on average. A learning rate is step_size (1 + t)^-decay for
y and v, that over `ratio` for x. Batches are drawn with replacement, 64 rows of each level.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from proxbi import Problem
from proxbi.problem import on_batches

BATCH = 64
INNER = NEUMANN = 10  # steps of y, and terms of the series, of the methods with loops: as benchmark_bilevel has them
Step = Callable[[Any, Array, Array], Any]
Peer = tuple[Any, Step, float]


def drawn(problem: Problem, key: Array) -> Problem:
    rows = {}
    for number, level in enumerate(("upper", "lower")):
        count = len(getattr(problem.data, level))
        index = jax.random.randint(jax.random.fold_in(key, number), (BATCH,), 0, count, jnp.int32)
        rows[level] = problem.data.batch(level, index)
    return on_batches(problem, **rows)


def pieces(problem: Problem, x: Array, y: Array, v: Array) -> tuple[Array, Array, Array]:
    """D_x, D_y, D_v, with the subgradient of h."""
    f_x, f_y = problem.grad_upper(x, y)
    d = f_x - problem.cross(x, y)(v) + jax.grad(problem.regularizer.value)(x)
    return d, problem.grad_lower(x, y), problem.hvp(x, y)(v) - f_y


def rates(t: Array, p: Any) -> tuple[Array, Array]:
    rate = p["step_size"] * (1.0 + t) ** -p["decay"]
    return rate, rate / p["ratio"]


def moved(point: Any, d: Any, a: Array, b: Array) -> Any:
    return point[0] - b * d[0], point[1] - a * d[1], point[2] - a * d[2]


def soba(problem: Problem, x: Array, y: Array, key: Array, p: Any) -> Peer:
    """Dagreou et al. 2022."""

    def step(point: Any, t: Array, key: Array) -> Any:
        return moved(point, pieces(drawn(problem, key), *point), *rates(t, p))

    return (x, y, jnp.zeros_like(y)), step, 4 * BATCH


def saba(problem: Problem, x: Array, y: Array, key: Array, p: Any) -> Peer:
    """Dagreou et al. 2022: tables by blocks of consecutive rows (these are in no order), zero at first."""
    counts = {level: len(getattr(problem.data, level)) // BATCH for level in ("upper", "lower")}
    tables = {
        "lower": jnp.zeros((counts["lower"], 2 * y.size + x.size)),
        "upper": jnp.zeros((counts["upper"], x.size + y.size)),
    }
    means = {level: jnp.zeros(table.shape[1]) for level, table in tables.items()}

    def estimate(level: str, said: Array, block: Array, tables: Any, means: Any) -> tuple[Array, Any, Any]:
        change = said - tables[level][block]
        new = means | {level: means[level] + change / counts[level]}
        return change + means[level], tables | {level: tables[level].at[block].set(said)}, new

    def step(state: Any, t: Array, key: Array) -> Any:
        (x, y, v), (tables, means) = state[:3], state[3:]
        rows, blocks = {}, {}
        for number, level in enumerate(counts):
            blocks[level] = jax.random.randint(jax.random.fold_in(key, number), (), 0, counts[level], jnp.int32)
            rows[level] = problem.data.batch(level, blocks[level] * BATCH + jnp.arange(BATCH, dtype=jnp.int32))
        here = on_batches(problem, **rows)
        lower = jnp.concatenate([here.grad_lower(x, y), here.hvp(x, y)(v), here.cross(x, y)(v)])
        lower, tables, means = estimate("lower", lower, blocks["lower"], tables, means)
        upper, tables, means = estimate("upper", jnp.concatenate(here.grad_upper(x, y)), blocks["upper"], tables, means)
        g_y, product, cross = jnp.split(lower, [y.size, 2 * y.size])
        d = upper[: x.size] - cross + jax.grad(problem.regularizer.value)(x), g_y, product - upper[x.size :]
        return (*moved((x, y, v), d, *rates(t, p)), tables, means)

    return (x, y, jnp.zeros_like(y), tables, means), step, 4 * BATCH


def srba(problem: Problem, x: Array, y: Array, key: Array, p: Any) -> Peer:
    """Dagreou et al. 2024: all rows every `period` (in rows, relative to their number), differences in between."""
    total = sum(len(getattr(problem.data, level)) for level in ("upper", "lower"))
    period = jnp.maximum(p["period"] * total / BATCH, 1.0)

    def step(state: Any, t: Array, key: Array) -> Any:
        point, last, said = state[:3], state[3], state[4]
        here = drawn(problem, key)
        refresh = jnp.floor(t % period) == 0
        difference = jax.tree.map(lambda s, a, b: s + a - b, said, pieces(here, *point), pieces(here, *last))
        # Under vmap both branches run: the judge counts the rows of the one that counts.
        said = jax.lax.cond(refresh, lambda: pieces(problem, *point), lambda: difference)
        return (*moved(point, said, *rates(t, p)), point, said)

    point = (x, y, jnp.zeros_like(y))
    upper, lower = (len(getattr(problem.data, level)) for level in ("upper", "lower"))
    return (*point, point, (x, y, y)), step, 8 * BATCH + (3 * lower + upper) / period


def neumann(problem: Problem, x: Array, y: Array, key: Array, rate: Array) -> Array:
    """Sum of (I - a g_yy)^k a f_y, each factor on a batch of its own."""
    f_y = problem.grad_upper(x, y)[1]

    def term(k: int, at: tuple[Array, Array]) -> tuple[Array, Array]:
        power = at[0] - rate * drawn_again(problem, key, k).hvp(x, y)(at[0])
        return power, at[1] + power

    return rate * jax.lax.fori_loop(0, NEUMANN, term, (f_y, f_y))[1]


def drawn_again(problem: Problem, key: Array, k: Any) -> Problem:
    source: Any = problem.source  # type: ignore[attr-defined]  # of the problems of this benchmark alone
    return drawn(source, jax.random.fold_in(key, 100 + k))


class Sourced(Problem):
    """A problem on a batch that can draw others."""

    source: Any = None


def sourced(problem: Problem, key: Array) -> Problem:
    here = drawn(problem, key)
    return Sourced(here.upper, here.lower, here.regularizer, here.data, source=problem)


def stocbio(problem: Problem, x: Array, y: Array, key: Array, p: Any) -> Peer:
    """Ji, Yang, Liang 2021."""

    def step(state: Any, t: Array, key: Array) -> Any:
        x, y = state
        a, b = rates(t, p)
        y = jax.lax.fori_loop(0, INNER, lambda k, y: y - a * drawn_at(problem, key, k).grad_lower(x, y), y)
        here = sourced(problem, key)
        v = neumann(here, x, y, key, a)
        return x - b * pieces(here, x, y, v)[0], y

    return (x, y), step, (INNER + NEUMANN + 2) * BATCH


def drawn_at(problem: Problem, key: Array, k: Any) -> Problem:
    return drawn(problem, jax.random.fold_in(key, 10 + k))


def mrbo(problem: Problem, x: Array, y: Array, key: Array, p: Any) -> Peer:
    """Yang, Ji, Liang 2021: STORM's momentum in y and x."""

    def directions(here: Problem, x: Array, y: Array, key: Array, a: Array) -> tuple[Array, Array]:
        v = neumann(here, x, y, key, a)
        return pieces(here, x, y, v)[0], here.grad_lower(x, y)

    def step(state: Any, t: Array, key: Array) -> Any:
        x, y, last, said = state
        a = p["step_size"] * (1.0 + t) ** -(1 / 3)
        b, weight = a / p["ratio"], jnp.minimum(0.5 * (1.0 + t) ** -(2 / 3), 1)
        here = sourced(problem, key)
        now, before = directions(here, x, y, key, p["step_size"]), directions(here, *last, key, p["step_size"])
        first = t == 0
        said = jax.tree.map(lambda s, n, o: jnp.where(first, n, n + (1 - weight) * (s - o)), said, now, before)
        return x - b * said[0], y - a * said[1], (x, y), said

    return (x, y, (x, y), (x, y)), step, 2 * (NEUMANN + 3) * BATCH


def f2sa(problem: Problem, x: Array, y: Array, key: Array, p: Any) -> Peer:
    """Kwon et al. 2023."""

    def step(state: Any, t: Array, key: Array) -> Any:
        x, z, u = state
        a, b = rates(t, p)
        weight = 1.0 + p["growth"] * t

        def inner(k: int, at: tuple[Array, Array]) -> tuple[Array, Array]:
            z, u = at
            here = drawn_at(problem, key, k)
            # a / weight keeps the step of the tilted level at that of g, as the theory asks.
            return z - a * here.grad_lower(x, z), u - a * (here.grad_lower(x, u) + here.grad_upper(x, u)[1] / weight)

        z, u = jax.lax.fori_loop(0, INNER, inner, (z, u))
        here = drawn(problem, key)
        apart = here.grad_lower_x(x, u) - here.grad_lower_x(x, z)
        d = here.grad_upper(x, u)[0] + weight * apart + jax.grad(problem.regularizer.value)(x)
        return x - b * d, z, u

    return (x, y, y), step, (3 * INNER + 3) * BATCH
