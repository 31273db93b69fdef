"""What `minimize` claims with a lower regularizer, against the truth: the draws are in `truth_faces.py`."""

from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truth
import truth_faces


def _judge(number: int, first: int = 0) -> None:
    found = truth.faults(map(truth_faces.outcome, islice(truth_faces.cases(), first, first + number)))
    assert not found, "\n" + "\n".join(found)


@pytest.mark.slow
def test_claims_hold_on_faces() -> None:
    _judge(12)


@pytest.mark.slow
@pytest.mark.hours
def test_claims_hold_on_faces_of_a_thousand_cases() -> None:
    _judge(1000, 12)


@pytest.mark.slow
def test_the_truth_on_faces_is_that_of_differences() -> None:
    """In extended precision; and y* is where a proximal gradient step of JAX's regularizers leaves it."""
    kinds = set()
    for made in islice(truth_faces.cases(), 6):
        data, x = made.exact, made.x0.astype(np.longdouble)
        found = truth_faces.solved(data, x, made.y0.astype(np.longdouble))
        assert found is not None
        length = np.longdouble(1e-6)
        for along in np.eye(truth_faces.N):
            ends = [truth_faces.solved(data, x + sign * length * along, found.y) for sign in (1, -1)]
            assert all(end is not None for end in ends)
            up, down = (_phi(data, x + sign * length * along, end.y) for sign, end in zip((1, -1), ends, strict=True))
            size = float(np.linalg.norm(found.sizes))
            np.testing.assert_allclose(found.gradient @ along, (up - down) / (2 * length), rtol=1e-6, atol=1e-7 * size)
        problem = truth_faces.problem_of(made)
        y = {kind: jnp.asarray(block, float) for kind, block in truth_faces._blocks(found.y).items()}
        forward = jax.tree.map(lambda a, b: a - 0.3 * b, y, problem.grad_lower(made.x0, y))
        onward = problem.lower_prox(made.x0, forward, 0.3)
        for kind in truth_faces.KINDS:
            np.testing.assert_allclose(onward[kind], y[kind], atol=1e-12)
            kinds |= {kind} if np.any(np.isclose(y[kind], 0)) or kind == "box" else set()
    assert len(kinds) >= len(truth_faces.KINDS) - 1  # nearly each of them was active somewhere


def _phi(data: truth.Floats, x: np.ndarray, y: np.ndarray) -> np.longdouble:
    rest = data["C"] @ y - data["d"]
    return data["unit"] * (rest @ rest / 2 + data["a"] @ x)


@pytest.mark.slow
def test_a_claim_below_the_truth_is_noticed() -> None:
    """Negative control: a claim of half of the truth."""
    made = [truth_faces.outcome(case) for case in islice(truth_faces.cases(), 20)]
    found = truth.faults(replace(one, claim=one.claim._replace(stationarity=one.true / 2)) for one in made)
    for rule in ("estimates below the truth", "a guarantee is false"):
        assert any(fault.startswith(rule) for fault in found), found
