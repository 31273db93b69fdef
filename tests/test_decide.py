"""Whether a trial is taken, and what that teaches: the rules of `solvers/_decide.py`, on numbers."""

import math
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings

from proxbi.solvers import _decide
from proxbi.solvers._decide import GROWTH, ROUNDING, SAFETY, SHRINK, Decision, Move, Steering, Watch, decide

EPS = float(jnp.finfo(jnp.float64).eps)
NUMBERS = [name for name in Move._fields if name not in ("usable", "sure")]
EXAMPLES = settings(max_examples=200)
_decide_jit = jax.jit(decide)


def on_host(move: Move) -> Any:
    return Move(*(np.bool_(v) if isinstance(v, bool) else np.float64(v) for v in move))


def judged(move: Move) -> tuple[bool, bool, bool]:
    """taken, seen, doubtful."""
    found = _decide_jit(on_host(move))
    return bool(found.taken), bool(found.seen), bool(found.doubtful)


def made(**numbers: Any) -> Move:
    """A move that is good in every respect, but for what is given."""
    usual = dict(predicted=1.0, by_value=-0.5, by_slopes=-0.5, size=2.0, value_error=0.0, slope_error=0.0)
    return Move(**{**usual, "usable": True, "sure": False, **numbers})


def noise(move: Move) -> float:
    """By how much by_value may be off the true change."""
    return ROUNDING * EPS * move.size + move.value_error


@pytest.mark.parametrize(("slope", "doubtful"), [(-1e-20, True), (1e-20, True), (1e-18, False)])
def test_a_slope_that_is_smaller_than_its_error_is_doubtful(slope: float, doubtful: bool) -> None:
    """The step was blamed: after a poor estimate at x0, an answer, the radius shrank to nothing."""
    move = made(predicted=1e-20, by_value=0.0, by_slopes=slope, slope_error=1e-19)
    assert judged(move) == (False, False, doubtful)


magnitudes = st.floats(-18, 12).map(lambda power: 10.0**power) | st.just(0.0)
signed = st.builds(math.copysign, magnitudes, st.sampled_from([-1.0, 1.0]))
moves = st.builds(
    Move,
    predicted=signed,
    by_value=signed,
    by_slopes=signed,
    size=magnitudes,
    value_error=magnitudes,
    slope_error=magnitudes,
    usable=st.booleans(),
    sure=st.booleans(),
)


@st.composite
def coherent(draw: Any) -> Move:
    """Moves whose numbers fit one another as those of a smooth function do; in `moves` few are taken."""
    change = draw(signed)
    off = draw(st.floats(-2, 2)) * draw(st.sampled_from([0.0, 1e-8, 1e-3, 1.0]))
    return Move(
        predicted=abs(change) * draw(st.sampled_from([0.1, 1.0, 2.0, 100.0])),
        by_value=change,
        by_slopes=change * (1 + off),
        size=abs(change) * 10.0 ** draw(st.floats(0, 18)),
        value_error=abs(change) * 10.0 ** draw(st.floats(-12, 3)),
        slope_error=abs(change) * 10.0 ** draw(st.floats(-6, 2)),
        usable=draw(st.booleans()),
        sure=draw(st.booleans()),
    )


anything = moves | coherent()


@EXAMPLES
@given(anything)
def test_what_is_taken_lowers_the_objective_or_changes_it_by_no_more_than_rounding_hides(move: Move) -> None:
    move = move._replace(usable=True)
    if not judged(move)[0]:
        return
    falls = move.by_value + noise(move) < 0
    hidden = abs(move.by_value) <= SAFETY * move.value_error + ROUNDING**2 * EPS * move.size
    slides = move.by_slopes + move.slope_error <= 0
    assert falls or (hidden and slides)
    if not falls:  # what errors hide is no more than half of the gain that was predicted, or rounding
        gain = max(move.predicted, 0.0)
        assert SAFETY * move.value_error <= max(gain / 2, ROUNDING * EPS * move.size) * (1 + 4 * EPS)


@EXAMPLES
@given(anything)
def test_what_is_not_usable_is_never_taken_and_teaches_nothing(move: Move) -> None:
    assert judged(move._replace(usable=False)) == (False, False, False)


@EXAMPLES
@given(anything, st.sampled_from(NUMBERS), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_finite_is_never_taken(move: Move, name: str, value: float) -> None:
    taken, seen, _ = judged(move._replace(**{name: value}))
    assert not taken
    assert not seen


@EXAMPLES
@given(anything, st.floats(0.2, 1e12))
def test_errors_as_large_as_the_change_never_let_it_pass_as_seen_by_values(move: Move, times: float) -> None:
    """Of either sign: the change by values says nothing then, and the gain that is predicted bounds the errors."""
    error = times * max(abs(move.by_value), abs(move.predicted), EPS * ROUNDING * move.size, 1e-300)
    taken, _, _ = judged(move._replace(value_error=error))
    assert not taken


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_trial_of_the_issue_is_refused(sign: float) -> None:
    """breast_cancer, step 23 at c198a2c: -139 +- 7e8 was taken."""
    move = made(predicted=1.0, by_value=139.0 * sign, by_slopes=-1.0, size=139.3, value_error=7e8)
    taken, seen, doubtful = judged(move)
    assert not taken
    assert not seen
    assert doubtful  # the value may be at fault


def test_a_fall_that_slopes_do_not_know_is_doubted_first() -> None:
    """Kernel ridge regression with a length scale for each feature: -0.71 +- 0.05 was taken, and it was a rise."""
    move = made(predicted=1e-3, by_value=-0.71, by_slopes=-0.15, size=0.71, value_error=0.047, slope_error=0.01)
    assert judged(move) == (False, False, True)
    assert judged(move._replace(sure=True)) == (True, True, False)
    assert judged(move._replace(by_slopes=-0.6)) == (True, True, False)
    assert judged(move._replace(value_error=1e-6)) == (True, True, False)  # a cliff: no estimate is that wrong


@EXAMPLES
@given(anything, st.floats(1e-3, 1e12))
def test_a_rise_that_stands_out_is_never_taken(move: Move, above: float) -> None:
    most = SAFETY * move.value_error + ROUNDING**2 * EPS * move.size
    assert not judged(move._replace(by_value=(1 + above) * max(most, 1e-300)))[0]


@EXAMPLES
@given(anything, st.integers(-60, 60))
@example(made(), 3)
def test_units_of_f_do_not_matter(move: Move, power: int) -> None:
    scaled = move._replace(**{name: getattr(move, name) * 2.0**power for name in NUMBERS})
    assert judged(scaled) == judged(move)


@EXAMPLES
@given(anything)
def test_seen_is_taken_and_doubtful_is_not(move: Move) -> None:
    taken, seen, doubtful = judged(move)
    assert taken or not seen
    assert not (taken and doubtful)


def test_good_moves_are_taken() -> None:
    """Positive controls: a rule that refuses everything has all of the properties above."""
    assert judged(made()) == (True, True, False)
    assert judged(made(value_error=1e-3)) == (True, True, False)
    # Rounding hides the values, and the slopes show that it goes down.
    hidden = made(predicted=1e-15, by_value=3e-15, by_slopes=-5e-16, size=1e3, slope_error=1e-17)
    assert judged(hidden) == (True, True, False)
    assert judged(hidden._replace(by_slopes=5e-16))[0] is False
    assert judged(made(predicted=1.0, by_value=-1e-9))[0] is False  # far less than promised


@settings(max_examples=30)
@given(anything)
def test_decisions_are_those_of_the_uncompiled_rules(move: Move) -> None:
    found = decide(Move(*(jnp.asarray(v) for v in move)))
    assert (bool(found.taken), bool(found.seen), bool(found.doubtful)) == judged(move)


# --- steering ---------------------------------------------------------------------------------------------------------


def decision_of(*flags: str) -> Decision:
    return Decision(**{name: jnp.asarray(name in flags) for name in Decision._fields})


DECISIONS = [decision_of("taken", "seen"), decision_of("taken"), decision_of("doubtful"), decision_of()]
lengths = st.floats(-6, 6).map(lambda power: 10.0**power)


def steering(
    radius: float = 1.0, relax: float = 1.0, trust: float = 1.0, refined: bool = False, reach: float = math.inf
) -> Steering:
    numbers = (jnp.asarray(a) for a in (radius, reach, relax, trust))
    return Steering(*numbers, jnp.asarray(False), jnp.asarray(refined))


_steered = jax.jit(Steering.after)


def after(before: Steering, decision: Decision, length: float, learned: bool) -> Steering:
    return _steered(before, decision, np.float64(length), np.bool_(learned))


@EXAMPLES
@given(st.sampled_from(DECISIONS), lengths, lengths, st.booleans(), st.booleans())
def test_the_radius_grows_with_steps_taken_and_shrinks_with_those_refused(
    decision: Decision, radius: float, length: float, learned: bool, refined: bool
) -> None:
    new = after(steering(radius, refined=refined), decision, length, learned)
    if decision.taken:
        assert float(new.radius) == pytest.approx(max(radius, GROWTH * length))
        assert not new.refine
        assert not new.refined
    elif decision.doubtful and not refined:
        assert float(new.radius) == radius
        assert new.refine
    else:
        assert 0 < float(new.radius) <= SHRINK * min(radius, length) * (1 + 4 * EPS)
        assert not new.refine


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(DECISIONS), lengths, st.booleans()), max_size=8))
def test_trust_stays_at_least_1_and_is_forgotten(path: list[tuple[Decision, float, bool]]) -> None:
    state = steering()
    for decision, length, learned in path:
        refined = state.refined | state.refine  # as the solver sets it, once x was evaluated again
        state = after(state._replace(refined=refined), decision, length, learned)
        assert float(state.trust) >= 1
        assert 0 < float(state.relax) <= 1
        assert float(state.radius) > 0
    for _ in range(40):
        state = after(state, DECISIONS[0], 1.0, True)
    assert float(state.trust) == 1
    assert float(state.relax) == 1


def test_a_point_is_refined_once() -> None:
    """Doubt twice about the same x is no reason to evaluate it a third time: then the step is to blame."""
    doubt = DECISIONS[2]
    first = after(steering(), doubt, 1.0, False)
    assert first.refine
    again = after(first._replace(refined=jnp.asarray(True), refine=jnp.asarray(False)), doubt, 1.0, False)
    assert not again.refine
    assert float(again.radius) < float(first.radius)


def test_refusals_in_a_row_end_at_a_radius_of_nothing_and_never_below() -> None:
    state = steering(1.0)
    for _ in range(60):
        state = after(state, DECISIONS[3], float(state.radius), False)
    assert 0 < float(state.radius) < 1e-10


def test_a_refused_jump_is_not_proposed_again_until_some_steps_were_taken() -> None:
    """A nonconvex h jumped to the same far point after every few steps, and the radius never knew."""
    taken, refused = DECISIONS[0], DECISIONS[3]
    within = after(steering(1.0), refused, 0.5, False)
    assert math.isinf(float(within.reach))
    state = after(steering(1.0), refused, 8.0, False)
    assert float(state.reach) == SHRINK * 8.0
    tries = 0
    while float(state.reach) < 8.0:
        state, tries = after(state, taken, 1e-3, True), tries + 1
    assert tries == 4


# --- watching ---------------------------------------------------------------------------------------------------------

_watched = jax.jit(Watch.after)


def watched(state: Watch, decision: Decision, gap: float, length: float) -> Watch:
    return _watched(state, decision, np.float64(gap), np.float64(length))


def watch(gap: float = 1.0) -> Watch:
    one = jnp.asarray(1.0)
    seen = jnp.asarray(gap)
    return Watch(radius=one, start=one, best_gap=seen, steepest=seen, longest=one, idle=jnp.int32(0))


@EXAMPLES
@given(
    st.lists(
        st.tuples(st.sampled_from(DECISIONS), lengths | st.just(math.nan) | st.just(math.inf), lengths), max_size=8
    )
)
def test_a_watch_remembers_the_best_the_steepest_and_the_longest(path: list[tuple[Decision, float, float]]) -> None:
    state = watch()
    for decision, gap, length in path:
        assume(math.isfinite(gap) or not decision.taken)
        state = watched(state, decision, gap, length)
    taken = [(gap, length) for decision, gap, length in path if decision.taken]
    finite = [gap for _, gap, _ in path if math.isfinite(gap)]
    np.testing.assert_allclose(state.best_gap, min([1.0, *finite]))
    np.testing.assert_allclose(state.steepest, max([1.0, *(gap for gap, _ in taken)]))
    np.testing.assert_allclose(state.longest, max([1.0, *(length for _, length in taken)]))
    assert float(state.radius) == 1


def test_idle_counts_trials_without_progress_and_starts_again_with_any() -> None:
    nothing, hidden, clear = DECISIONS[3], DECISIONS[1], DECISIONS[0]
    state = watch()
    for count in range(1, 4):
        state = watched(state, nothing, 1.0, 0.1)
        assert int(state.idle) == count
    assert int(watched(state, hidden, 0.99, 0.1).idle) == 4  # taken, but neither seen nor much less steep
    assert int(watched(state, clear, 0.99, 0.1).idle) == 0
    assert int(watched(state, nothing, 0.5, 0.1).idle) == 0
    for gap in (math.nan, math.inf):
        assert int(watched(state, nothing, gap, 0.1).idle) == 4


@EXAMPLES
@given(st.sampled_from(DECISIONS), lengths, lengths, st.integers(-40, 40))
def test_a_watch_has_no_units(decision: Decision, gap: float, length: float, power: int) -> None:
    unit = 2.0**power
    base = watched(watch(), decision, gap, length)
    other = watched(
        watch()._replace(best_gap=jnp.asarray(unit), steepest=jnp.asarray(unit)), decision, gap * unit, length
    )
    assert int(other.idle) == int(base.idle)
    assert float(other.best_gap) == float(base.best_gap) * unit


def test_the_constants_are_of_use() -> None:
    assert GROWTH > 1 > SHRINK > 0
    assert 0 < _decide.SUFFICIENT < 0.5
    assert _decide.DOUBT > 1 > _decide.FORGIVEN > 0
