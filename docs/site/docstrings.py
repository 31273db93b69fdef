"""Docstrings on the site: examples become code blocks, names in code font become links to what they name, and classes
that are made by equinox or `NamedTuple` show how they are called.
"""

import importlib
import inspect
import re
from enum import Enum
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

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        called = not cls.name.startswith("_") and "TypedDict" not in map(str, cls.bases)
        if called and "__init__" not in cls.members:
            cls.set_member("__init__", griffe.Function("__init__", parameters=_parameters(cls)))


def as_markdown(text: str, own: str = "") -> str:
    """A docstring as Markdown: a doctest would be read as nested quotations."""
    text = linked(text, own)
    return _EXAMPLE.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", text)


def _parameters(cls: griffe.Class) -> griffe.Parameters:
    """What the class takes, asked of the class itself; nothing where it does not say."""
    try:
        made_of = getattr(importlib.import_module(cls.module.path), cls.name)
        signature = inspect.Signature() if issubclass(made_of, Enum) else inspect.signature(made_of)
    except (AttributeError, ImportError, TypeError, ValueError):
        return griffe.Parameters()
    made = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for name, parameter in signature.parameters.items():
        default = None if parameter.default is parameter.empty else _shown(parameter.default)
        made.append(griffe.Parameter(name, kind=griffe.ParameterKind(parameter.kind.description), default=default))
    return griffe.Parameters(*made)


def _shown(default: Any) -> str:
    """A default as it would be written; what has no short form stands for itself."""
    text = repr(default)
    return text if len(text) < 20 and not text.startswith("<") else "..."
