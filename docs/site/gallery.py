"""The gallery: a page for each example, from its docstring, its figure and its code."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLES, FIGURES = ROOT / "examples", ROOT / "docs" / "gallery"


class Example(NamedTuple):
    """A script and what its page says."""

    name: str
    title: str
    text: str
    code: str


def examples() -> list[Example]:
    """All examples, in the order of their numbers."""
    return [_read(path) for path in sorted(EXAMPLES.glob("[0-9]*.py"))]


def _read(path: Path) -> Example:
    code = path.read_text()
    title, _, text = (ast.get_docstring(ast.parse(code)) or "").partition("\n\n")
    return Example(re.sub(r"^\d+_", "", path.stem), title.rstrip("."), text, code)


def pages() -> dict[str, str]:
    """The source of every page of the gallery."""
    made = {f"gallery/{example.name}.md": _page(example) for example in examples()}
    return made | {"gallery/index.md": _index(examples())}


def _file(example: Example) -> str:
    return next(path.name for path in EXAMPLES.glob(f"[0-9]*_{example.name}.py"))


def _page(example: Example) -> str:
    body = re.sub(r'\Ar?""".*?"""\n+', "", example.code, flags=re.DOTALL)
    return (
        f"# {example.title}\n\n{example.text}\n\n![{example.title}]({example.name}.png){{ .figure }}\n\n"
        f"`python examples/{_file(example)}` draws it; with `--small` in some seconds, from less data.\n\n"
        f"```py\n{body}```\n"
    )


def _index(found: list[Example]) -> str:
    """A grid of figures, each a link."""
    cards = "\n".join(
        f"-   [![{each.title}]({each.name}.png)]({each.name}.md)\n\n    **[{each.title}]({each.name}.md)**\n"
        for each in found
    )
    return (
        "# Gallery\n\nEach figure is drawn by a script of at most 120 lines in `examples/`, which its page shows.\n\n"
        f'<div class="grid cards gallery" markdown>\n\n{cards}\n</div>\n'
    )
