"""The README's example is run as it stands, and must print what the README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("part", ["", pytest.param(", part 2", marks=pytest.mark.slow)])
def test_the_examples_of_the_readme_print_what_it_says(part):
    text = README.read_text()
    code = re.search(rf"<!-- executed by tests/test_docs.py{part} -->\n```python\n(.*?)```", text, re.DOTALL)[1]
    output = re.search(rf"<!-- the output{part} -->\n```\n(.*?)```", text, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    env = {**os.environ, "JAX_ENABLE_X64": "0"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stdout == output


def test_every_name_in_the_readme_is_public():
    import proxbi

    listed = re.search(r"- \*\*Regularizers.*?\n## ", README.read_text(), re.DOTALL)[0]
    names = set(re.findall(r"\b([A-Z][A-Za-z0-9]+)\b", " ".join(re.findall(r"`([^`]*)`", listed))))
    assert len(names) > 30
    assert [name for name in sorted(names) if not hasattr(proxbi, name)] == []


PAGES = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["table", "rows"])
def test_the_examples_of_large_tables_print_what_it_says(part):
    text = (PAGES / "large_tables.md").read_text()
    code = re.search(rf"<!-- executed by tests/test_docs.py, {part} -->\n```python\n(.*?)```", text, re.DOTALL)[1]
    output = re.search(rf"<!-- the output, {part} -->\n```\n(.*?)```", text, re.DOTALL)[1]
    env = {**os.environ, "JAX_ENABLE_X64": "0"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stdout == output


def test_the_tests_that_large_tables_names_are_there():
    text = (PAGES / "large_tables.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    written = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"def {name}(" not in written] == []
