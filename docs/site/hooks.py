"""What MkDocs does beside rendering: pages that are made at build time, formulas as MathML, names as links.

Made at build time: the gallery (from the docstring, the code and the figure of each example), the report that
cleaning.md shows, and the pages that are files of the repository.
"""

import html
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # also for docstrings.py, which mkdocstrings loads by its path

import gallery  # noqa: E402  # is beside this file: only the path set above finds it
import sample_report  # noqa: E402  # is beside this file: only the path set above finds it
from names import linked  # noqa: E402  # is beside this file: only the path set above finds it

ROOT = HERE.parents[1]
AS_THEY_ARE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages that are files of the repository."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made now."""
    for page, source in AS_THEY_ARE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, content in gallery.pages().items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=content))
    with tempfile.TemporaryDirectory() as folder:
        report = sample_report.write(Path(folder)).read_text()
    files.append(File.generated(config, "cleaning-report.html", content=report))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Names of the library in code font are links to the API."""
    return linked(markdown)


_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_OPERATOR = re.compile(r"(\\min|\\max|\\sup|\\text\{arg min\})_(\{[^}]*\}|\\?\w)")


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tex = html.unescape(found[2]).strip().replace(r"\arg\min", r"\text{arg min}")
    display = "block" if found[1] == "div" else "inline"
    if display == "block":  # what an operator ranges over stands below it
        tex = _OPERATOR.sub(r"\\underset{\2}{\1}", tex)
    made = convert(tex, display=display)
    if "\\" in made:
        raise ValueError(f"a command that latex2mathml does not know: {tex}")
    return made
