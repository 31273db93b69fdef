"""Every improper problem of `improper.py` ends as it should, with a sentence that helps; and the page says so."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import improper
from improper import Row
from proxbi import Result, Status

MOST_CALLS = 100_000
"""Of all oracles: some seconds on problems of this size."""
IDS = {"ids": lambda row: f"{row.kind}: {row.name}"}


def judge(row: Row, result: Result) -> None:
    assert result.status is row.ends, result
    assert row.says in result.sentence
    assert result.counts.total <= MOST_CALLS
    assert np.all(np.isfinite(result.x))
    if row.answer is not None:
        np.testing.assert_allclose(result.x, row.answer, atol=1e-4)
    if result.status is Status.CONVERGED:
        assert result.objective <= result.history[0]["objective"]
        assert np.all(np.abs(np.asarray(result.x)) < 1e6)


def by_groups() -> list[Any]:
    """One program for the rows of a group: the first, with a row of each kind, is quick; the third and later ones wait
    for `-m hours`.
    """
    marks = {0: [], 1: [pytest.mark.slow]}
    late = [pytest.mark.slow, pytest.mark.hours]
    rows = enumerate(improper.shared())
    return [pytest.param(row, marks=marks.get(k // improper.TOGETHER, late)) for k, row in rows]


@pytest.mark.parametrize("row", [row for row in improper.ROWS if row.raises], **IDS)
def test_what_cannot_be_solved_is_refused_by_name(row: Row) -> None:
    assert not isinstance(row.ends, Status)
    with pytest.raises(row.ends) as raised:
        row.run()
    assert type(raised.value) is row.ends
    assert row.says in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("row", by_groups(), **IDS)
def test_a_run_ends_with_the_right_status(row: Row) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge(row, improper.run_shared(row))


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in improper.ROWS if not (row.raises or row.shared)], **IDS)
def test_one_that_needs_a_program_of_its_own(row: Row) -> None:
    judge(row, row.run(throw=False))


@pytest.mark.slow
@pytest.mark.hours  # each is a program of its own: some seconds to compile, and a minute and more for all
@pytest.mark.parametrize("row", improper.shared(), **IDS)
def test_so_it_does_alone(row: Row) -> None:
    judge(row, row.run(throw=False))


def test_there_are_enough_of_each_kind() -> None:
    kinds = Counter(row.kind for row in improper.ROWS)
    assert sum(kinds.values()) >= 40
    assert min(kinds.values()) >= 4, kinds
    assert len({(row.kind, row.name) for row in improper.ROWS}) == len(improper.ROWS)


def test_the_page_agrees() -> None:
    page = Path(__file__).parents[1] / "docs" / "improper.md"
    assert page.read_text() == improper.page()
