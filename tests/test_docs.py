"""The pages: snippets run and print what their page says, every public name is documented, and none is made up."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import docstring_rules
import names
import proxbi
import snippets

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {"scale.md"}
"""Pages with programs for several processes: tests/test_scale.py runs them."""
RUN = {
    str(page.relative_to(ROOT)): page
    for page in PAGES
    if page.name not in ELSEWHERE and snippets.blocks(page.read_text())
}
QUICK = {"README.md"}
"""The first page."""
IN_CI = {"docs/start.md", "docs/problem.md", "docs/citing.md", "docs/supported.md", "docs/api/runs.md"}
"""What a new user runs first, and pages that take a few seconds. The others, up to a minute each and mostly for
compiling, run before a release."""


def _marks(page: str) -> list[pytest.MarkDecorator]:
    if page in QUICK:
        return []
    return [pytest.mark.slow] if page in IN_CI else [pytest.mark.slow, pytest.mark.hours]


@pytest.mark.parametrize("page", [pytest.param(page, marks=_marks(page)) for page in RUN])
def test_a_page_prints_what_it_says(page: str, tmp_path: Path) -> None:
    env = {**os.environ, "JAX_ENABLE_X64": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, ROOT / "docs" / "site" / "snippets.py", RUN[page], "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_says_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```output\n3\n```\n")
    printed = snippets.run(page, tmp_path)
    assert printed == ["2\n"]
    assert snippets.written(page.read_text(), printed) != page.read_text()


def test_snippets_are_blocks_of_code_with_their_output() -> None:
    text = "```python\na\n```\n\n```output\nb\n```\ntext\n```console\n$ proxbi\n```\n```{.python .other}\nc\n```\n"
    found = snippets.blocks(text)
    assert [(block.kind, block.shown is not None) for block in found] == [("python", True), ("console", False)]


def test_only_code_of_other_libraries_is_not_run() -> None:
    marked = [page.name for page in PAGES if "{.python .other}" in page.read_text()]
    assert marked == ["coming-from.md"]
    assert not [page.name for page in PAGES if re.search(r"^```py\b", page.read_text(), re.MULTILINE)]


def test_the_example_of_the_readme_is_short_and_that_of_the_first_page() -> None:
    first, same = (snippets.blocks((ROOT / page).read_text())[0] for page in ("README.md", "docs/index.md"))
    assert first.code == same.code
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 15


def _resolved(path: str) -> object:
    """What a dotted name means: a module, or an attribute of one; an error if it means nothing."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AttributeError(path)


def test_every_public_name_is_on_an_api_page() -> None:
    assert set(proxbi.__all__) <= {name.removeprefix("proxbi.") for name in names.public()}
    there = [_resolved(name) for name in names.documented()]
    missing = [name for name in names.public() if not any(_resolved(name) is each for each in there)]
    assert missing == []


def test_every_public_name_has_arguments_returns_an_example_and_a_reference() -> None:
    """Its formula no script can see."""
    assert docstring_rules.lacking() == {}


def test_what_a_docstring_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxbi.L1, "__doc__", "The l1 norm.")
    monkeypatch.setattr(proxbi.minimize, "__doc__", "Solve it. Example: `nothing`.")
    assert docstring_rules.missing("proxbi.L1") == ["`strength`", "example", "reference"]
    assert {"`problem`", "returns", "example"} <= set(docstring_rules.missing("proxbi.minimize"))
    monkeypatch.setattr(proxbi.Box, "__doc__", None)
    assert docstring_rules.missing("proxbi.Box") == ["docstring"]


NAMED = re.compile(r"^::: (\S+)|\]\[(proxbi[\w.]+)\]|`(proxbi\.[A-Za-z_][\w.]*)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_names_what_does_not_exist(page: Path) -> None:
    for found in NAMED.finditer(page.read_text()):
        _resolved(next(filter(None, found.groups())).rstrip("."))


def test_a_name_that_does_not_exist_is_found() -> None:
    assert NAMED.findall("`proxbi.Nonsense(1)`") == [("", "", "proxbi.Nonsense")]
    with pytest.raises(AttributeError):
        _resolved("proxbi.Nonsense")


CALLED = re.compile(r"`([A-Z][A-Za-z0-9]+)\(")
OTHERS = {"ProjectedGradient", "StratifiedKFold"}
"""Classes of other libraries."""


def test_classes_that_pages_call_are_public() -> None:
    known = {name.rsplit(".", 1)[1] for name in names.public()} | OTHERS
    for page in PAGES:
        called = set(CALLED.findall(page.read_text()))
        assert called <= known, f"{page.name}: {sorted(called - known)}"


def test_every_status_is_explained() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert [status.name for status in proxbi.Status if f"`{status.name}`" not in text] == []


def test_the_tests_that_pages_name_are_there() -> None:
    there = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for page in PAGES:
        named = set(re.findall(r"`(test_\w+)`", page.read_text()))
        assert [name for name in sorted(named) if f"def {name}(" not in there] == [], page.name
