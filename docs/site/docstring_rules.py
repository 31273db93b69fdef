"""What the docstring of a public name must have: `python docs/site/docstring_rules.py` lists what is missing.

Every name: a first sentence. What can be called: each argument by name (in the docstring, in that of `__init__`, or
under the field), what it returns, and an example that runs; records and base classes may name the example elsewhere
that shows them ("Example: `minimize`."). Published methods: a reference, with its year.
"""

import ast
import importlib
import inspect
import re
import textwrap
from enum import Enum
from typing import Any, is_typeddict

from names import public

METHODS = ("solvers", "regularizers", "hypergradient", "linear", "lower", "newton")
"""Modules of methods, whose names need a reference."""
TOOLS = {
    *("Solver", "Info", "Fault", "Regularizer", "Elementwise", "Leafwise", "Penalty", "Zero", "Separable", "Sum"),
    *("Scaled", "Shifted", "traced_step", "BLOCK", "PAPER_SOLVERS", "OnBatches", "Minibatch", "LinearSolver"),
    *("LinearInfo", "LinearStatus", "LowerSolver", "Hypergradient", "ControlledHypergradient", "HypergradientEstimate"),
    *("Evaluation", "Outcome", "Direct", "Optax", "OutsideInterval"),
}
"""Names in those modules that are no method: base classes, records, and what puts methods together."""
_SEEN_AT = re.compile(r"Examples?: `([\w.]+)`")
_VALUE = re.compile(r"^(The|A|An|Whether|How|Where|One|Two|All|Each|`|\$|f|g|\|)\b|^[`$|]")
"""First sentences that are the value itself: "The seed of ...", "Whether ..."."""


def missing(name: str) -> list[str]:
    """What the docstring of a public name lacks, in words."""
    module, _, attribute = public()[name].rpartition(".")
    thing = _thing(name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return []  # a constant or a type: the string under it is on its page
    text = thing.__dict__.get("__doc__", "") if inspect.isclass(thing) else inspect.getdoc(thing)
    if not text or text.startswith(f"{attribute}("):  # what dataclasses and NamedTuples write by themselves
        return ["docstring"]
    plain = inspect.isclass(thing) and (issubclass(thing, Enum | BaseException) or is_typeddict(thing))
    if plain:
        return []
    lacks = [f"`{each}`" for each in _arguments(thing) if not _explained(each, thing, text)]
    if inspect.isroutine(thing) and _gives(thing) and "**Returns:**" not in text and not _VALUE.match(text):
        lacks.append("returns")
    if ">>>" not in text and not _example_elsewhere(text):
        lacks.append("example")
    is_method = module.split(".")[1] in METHODS and attribute not in TOOLS
    if is_method and not re.search(r"\b(19|20)\d\d\b", text):
        lacks.append("reference")
    return lacks


def lacking() -> dict[str, list[str]]:
    """What is missing, by name."""
    return {name: found for name in public() if (found := missing(name))}


def _thing(name: str) -> Any:
    module, _, attribute = public()[name].rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _example_elsewhere(text: str) -> bool:
    found = _SEEN_AT.search(text)
    paths = {name.rsplit(".", 1)[1]: name for name in public()}
    return bool(found) and found[1].rsplit(".", 1)[-1] in paths


def _gives(function: Any) -> bool:
    return inspect.signature(function).return_annotation not in (None, "None", inspect.Signature.empty)


def _arguments(thing: Any) -> list[str]:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return []
    return [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _explained(argument: str, thing: Any, text: str) -> bool:
    said = text + (getattr(thing.__init__, "__doc__", "") or "" if inspect.isclass(thing) else "")
    return bool(re.search(rf"`{argument}\b|\b{argument}`", said)) or argument in _fields(thing)


def _fields(thing: Any) -> set[str]:
    """The fields of a class, and of those it inherits from, with a string under them."""
    classes = thing.__mro__ if inspect.isclass(thing) else ()
    return {field for cls in classes if cls.__module__.startswith("proxbi") for field in _with_strings(cls)}


def _with_strings(cls: type) -> set[str]:
    """One string may stand under several fields in a row."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    found, waiting = set(), []
    for node in getattr(definition, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            waiting.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found, waiting = found | set(waiting), []
        else:
            waiting = []
    return found


if __name__ == "__main__":
    for each in sorted(public()):
        if found := missing(each):
            print(f"{each:45} {public()[each]:60} {', '.join(found)}")
