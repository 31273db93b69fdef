"""What `check` found, and the page it is printed on."""

import textwrap
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

_WIDTH = 120  # of the page
RIDGE = "Add a ridge term in y to lower, such as 1e-3 * jnp.sum(y**2)."


class Level(Enum):
    """What a look says."""

    OK = "ok"
    NOTE = "note"
    FAULT = "FAULT"


class Look(NamedTuple):
    """One line: what was checked, the number, and the verdict with what to do."""

    subject: str
    number: str
    verdict: str
    level: Level = Level.OK


@dataclass(frozen=True)
class Diagnosis:
    """What `check` returns. `str(diagnosis)` is a page to print.

    Example: `check`.
    """

    looks: list[Look]
    """What was checked, a line each."""

    @property
    def faults(self) -> list[Look]:
        """What has to be changed."""
        return [look for look in self.looks if look.level is Level.FAULT]

    @property
    def ok(self) -> bool:
        """Whether no fault was seen."""
        return not self.faults

    def __str__(self) -> str:
        found = len(self.faults)
        head = "No fault was seen." if self.ok else f"{found} fault{'s' if found > 1 else ''}: see the lines below."
        return "\n".join([head, *(line for look in self.looks for line in _printed(look))])


def _printed(look: Look) -> list[str]:
    begin = f"{look.level.value:<6}{look.subject:<22}"
    text = f"{look.number}: {look.verdict}" if look.number else look.verdict
    return textwrap.wrap(begin + text, _WIDTH, subsequent_indent=" " * len(begin), break_long_words=False)


def level(good: Any) -> Level:
    return Level.OK if good else Level.FAULT


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def leaves(name: str, paths: list[str]) -> str:
    return ", ".join(name + path for path in paths)
