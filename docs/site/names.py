"""What is public, where the API pages document it, and links to it."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, API = ROOT / "src" / "proxbi", ROOT / "docs" / "api"
PACKAGES = (
    *("analytic", "cleaning", "datasets", "glm", "hypergradient", "linear_model"),
    *("plot", "regularizers", "report", "rows", "solvers", "theory"),
)
"""Those with names for users: `cli` and `experiments` are what commands call."""


def exported(module: Path) -> dict[str, str]:
    """The names that a module hands on (`from a import b as b`, or `__all__`), each with where it comes from."""
    found, listed = {}, None
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).startswith("proxbi"):
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            listed = set(ast.literal_eval(node.value))
    return {name: path for name, path in found.items() if not name.startswith("_") and (not listed or name in listed)}


@cache
def public() -> dict[str, str]:
    """Every public name, as users write it ("proxbi.L1"), with where it comes from."""
    names = {f"proxbi.{name}": path for name, path in exported(SOURCE / "_public.py").items()}
    for package in PACKAGES:
        names |= {f"proxbi.{package}.{n}": path for n, path in exported(SOURCE / package / "__init__.py").items()}
    return names


@cache
def documented() -> dict[str, str]:
    """The names on the API pages, each with its page."""
    pages = sorted(API.glob("*.md"))
    return {name: page.name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)}


@cache
def short_names() -> dict[str, str]:
    """What a name in code font means: "L1" is proxbi.L1. Names of the package itself come before those of parts."""
    return {name.rsplit(".", 1)[1]: name for name in sorted(documented(), key=lambda name: -name.count("."))}


_KEPT = r"^```.*?^```$|^    [^\n]*$|^#[^\n]*$|\[[^\]]*\][(\[][^)\]]*[)\]]"
_CODE = re.compile(rf"({_KEPT})|`((?:proxbi\.)?[\w.]+)(\([^`]*\))?`", re.MULTILINE | re.DOTALL)
"""What stays as it is (blocks of code, links, headings), or a name in code font, perhaps called."""


def linked(text: str, own: str = "") -> str:
    """Markdown in which the first mention of every public name is a link to it."""
    seen = {own}

    def link(found: re.Match[str]) -> str:
        name = found[2] or ""
        path = name if name in documented() else short_names().get(name)
        if found[1] is not None or path is None or name in seen:
            return found[0]
        seen.add(name)
        return f"[{found[0]}][{path}]"

    return _CODE.sub(link, text)
