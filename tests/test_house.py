"""The default solver stays small enough to be read in an hour, and its numbers have names."""

from pathlib import Path

import pytest

import house

FILES = house.counted()


def test_what_is_counted_is_what_only_the_default_solver_imports() -> None:
    expected = {"solvers/adaptive.py", "solvers/_decide.py", "solvers/_proximal_newton.py", "hypergradient/implicit.py"}
    assert expected | {"hypergradient/_controlled.py", "_lbfgs.py"} <= set(FILES)
    shared = {"_tree.py", "linear.py", "lower.py", "newton.py", "problem.py", "certificate.py", "_loop.py"}
    assert not shared & set(FILES)


# Not met yet: what keeps certificates true, jumps of a nonconvex h short and y off saddles took 180 lines more than
# this allows. Strict, so that the mark goes as soon as it is met.
@pytest.mark.xfail(strict=True, reason="open in issue 10: 834 lines, and 986 with the penalty")
def test_the_default_solver_is_short() -> None:
    solver = sum(house.size(file) for file in FILES)
    assert solver <= 650
    assert solver + house.size(house.PENALTY) <= 800


def test_no_function_is_long() -> None:
    found = [function for file in [*FILES, house.PENALTY] for function in house.functions(file)]
    assert [function for function in found if function.lines > 45] == []


def test_every_number_has_a_name() -> None:
    assert [literal for file in [*FILES, house.PENALTY] for literal in house.literals(file)] == []


SAMPLE = '''"""Two lines
of docstring."""
from enum import IntEnum

LIMIT = 7  # named
_A, _B = 3, (4.5, 6)


class Kind(IntEnum):
    """Members are names."""

    THIRD = 3


class Row:
    field: int = 80
    """Not code."""


def function(x, y=-3):
    """Not code."""

    # nor this
    def inner():
        return 0.5 * x + 1e-3

    return (
        inner()
        + True
        - 2
    )
'''


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(SAMPLE)
    return tmp_path


def test_the_script_counts_what_it_says(sample: Path) -> None:
    """Negative control: it finds the literals and the lines of a file in which they are known."""
    assert house.size("sample.py", sample) == 3 + 2 + 2 + 8
    assert {(f.name, f.lines) for f in house.functions("sample.py", sample)} == {("function", 8), ("inner", 2)}
    assert sorted(literal.value for literal in house.literals("sample.py", sample)) == ["0.001", "3", "80"]
