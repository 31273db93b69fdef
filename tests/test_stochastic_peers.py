"""Peers of the benchmark against the updates of their papers, by hand, on equal rows: batches have no noise."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stochastic_peers as peers
from proxbi import Problem, Rows

# g = A y^2 / 2 - B x y and f = (y - T)^2 / 2 + C x^2 / 2: y* = B x / A, v* = (y - T) / A, grad Phi = C x + B v*.
A, B, C, T = 0.8, 0.5, 0.3, 2.0
STEP, RATIO, GROWTH = 0.2, 4.0, 0.5
Y, X = STEP, STEP / RATIO  # step sizes
NUMBERS = {"step_size": STEP, "ratio": RATIO, "decay": 0.0, "period": 1.0, "growth": GROWTH}
STEPS = 4
Point = tuple[float, ...]


def upper(x: jax.Array, y: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean(batch["one"] * jnp.sum((y - T) ** 2) / 2) + C * jnp.sum(x**2) / 2


def lower(x: jax.Array, y: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean(batch["one"] * jnp.sum(A * y**2 / 2 - B * x * y))


def single_loop(t: int, x: float, y: float, v: float) -> Point:
    """Dagreou et al. 2022, (6); their SABA and SRBA estimate the same without error here."""
    return x - X * (C * x + B * v), y - Y * (A * y - B * x), v - Y * (A * v - (y - T))


def neumann(y: float) -> float:
    """Ji et al. 2021, (4): Q products, so Q + 1 terms."""
    return STEP * (y - T) * sum((1 - STEP * A) ** k for k in range(peers.NEUMANN + 1))


def stocbio(t: int, x: float, y: float) -> Point:
    """Ji et al. 2021, algorithm 2: the adjoint at the y after its inner steps."""
    for _ in range(peers.INNER):
        y -= Y * (A * y - B * x)
    return x - X * (C * x + B * neumann(y)), y


def mrbo(t: int, x: float, y: float) -> Point:
    """Yang et al. 2021, algorithm 1: momentum of STORM does nothing without noise, and steps fall as t^(-1/3)."""
    fade = (1 + t) ** (-1 / 3)
    return x - fade * X * (C * x + B * neumann(y)), y - fade * Y * (A * y - B * x)


def f2sa(t: int, x: float, z: float, u: float) -> Point:
    """Kwon et al. 2023, algorithm 1, with the penalty 1 + growth t."""
    penalty = 1 + GROWTH * t
    for _ in range(peers.INNER):
        z, u = z - Y * (A * z - B * x), u - Y * (A * u - B * x + (u - T) / penalty)
    return x - X * (C * x - penalty * B * (u - z)), z, u


PAPERS: dict[str, Callable[..., Point]] = {
    "soba": single_loop,
    "saba": single_loop,
    "srba": single_loop,
    "stocbio": stocbio,
    "mrbo": mrbo,
    "f2sa": f2sa,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_a_peer_takes_the_steps_of_its_paper(name: str) -> None:
    rows = {"one": jnp.ones(peers.BATCH)}
    problem, key = Problem(upper, lower, data=Rows(upper=rows, lower=rows)), jax.random.key(3)
    start = jnp.array([0.7]), jnp.array([-1.0])
    numbers = {name: jnp.asarray(value) for name, value in NUMBERS.items()}
    state, step, _ = getattr(peers, name)(problem, *start, key, numbers)
    size = {single_loop: 3, f2sa: 3}.get(PAPERS[name], 2)
    at = tuple(float(leaf[0]) for leaf in state[:size])
    with jax.numpy_dtype_promotion("standard"):
        advance = jax.jit(step)
        for t in range(STEPS):
            state, at = advance(state, jnp.asarray(float(t)), jax.random.fold_in(key, t)), PAPERS[name](t, *at)
    np.testing.assert_allclose([float(leaf[0]) for leaf in state[:size]], at, rtol=1e-9)
