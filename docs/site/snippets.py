"""Run what a page shows: `python docs/site/snippets.py README.md docs/start.md`.

Of a page, in order and in one namespace:

    ```python       is executed;
    ```console      lines that start with "$ proxbi" are executed;
    ```output       is what the block before it prints, to the letter.

Other blocks are only shown: ```sh for commands that take long or change the system, and ```{.python .other} for code of
other libraries. `--write` puts what was printed into the pages.
"""

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
COLUMNS = "100"
"""The width of the terminal that commands think they have."""


class Block(NamedTuple):
    """A block that is executed, and the output that is shown for it."""

    kind: str
    code: str
    line: int
    shown: tuple[int, int] | None
    """Where in the text the output is."""


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are executed."""
    found = []
    fences = [each for each in _FENCE.finditer(text) if each["kind"] in ("python", "console", "output")]
    for fence, after in zip_longest(fences, fences[1:]):
        if fence["kind"] == "output":
            continue
        follows = after is not None and after["kind"] == "output" and text[fence.end() : after.start()].strip() == ""
        shown = after.span("code") if follows and after is not None else None
        code = re.sub(rf"^{fence['indent']}", "", fence["code"], flags=re.MULTILINE)
        found.append(Block(fence["kind"], code, text.count("\n", 0, fence.start()) + 2, shown))
    return found


def run(page: Path, folder: Path) -> list[str]:
    """What each block of a page prints. The page is run in `folder`, where its files stay."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed, here = [], Path.cwd()
    source = page.resolve()
    os.chdir(folder)
    try:
        for block in blocks(source.read_text()):
            printed.append(_python(source, block, namespace) if block.kind == "python" else _console(block.code))
    finally:
        os.chdir(here)
    return printed


def _python(page: Path, block: Block, namespace: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        # As many empty lines before as there are on the page, so that errors name its lines.
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
    return out.getvalue()


def _console(code: str) -> str:
    printed = ""
    for line in code.splitlines():
        if line.startswith("$ proxbi"):
            command = [sys.executable, "-m", *shlex.split(line.removeprefix("$ "), comments=True)]
            env = {**os.environ, "COLUMNS": COLUMNS, "NO_COLOR": "1"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
            printed += done.stdout
    return "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"


def written(text: str, printed: list[str]) -> str:
    """The text with what was printed in its output blocks."""
    for block, output in reversed(list(zip(blocks(text), printed, strict=True))):
        if block.shown is not None:
            text = text[: block.shown[0]] + output + text[block.shown[1] :]
    return text


def main() -> None:
    """Run pages; exit code 1 where one does not print what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put what was printed into the pages")
    parser.add_argument("--folder", type=Path, help="where to run, and leave files")
    given = parser.parse_args()
    wrong = False
    for page in given.pages:
        with contextlib.ExitStack() as stack:
            folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            printed = run(page, folder)
        before = page.read_text()
        after = written(before, printed)
        if given.write:
            page.write_text(after)
        elif after != before:
            wrong = True
            names = (f"{page}, as shown", f"{page}, as printed")
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), *names))
    sys.exit(wrong)


if __name__ == "__main__":
    main()
