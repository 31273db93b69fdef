"""Docstrings on the site: examples become code blocks, and names in code font become links to what they name."""

import re
from typing import Any

import griffe

from names import linked

_EXAMPLE = re.compile(r"(?:^>>>.*\n?(?:^(?!>>>)(?!\s*$).*\n?)*)+", re.MULTILINE)
"""Lines from a prompt to the next blank one."""


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, own=obj.name)


def as_markdown(text: str, own: str = "") -> str:
    """A docstring as Markdown: a doctest would be read as nested quotations."""
    text = linked(text, own)
    return _EXAMPLE.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", text)
