"""How much code the default solver is: its lines, its longest functions, and its literals.

python benchmarks/house.py [--root src/proxbi]

Counted are the files that exist for the default solver alone: `solvers/adaptive.py`, `hypergradient/implicit.py`, and
every module that only these, or modules found in this way, import. The list is computed from the imports. Three kinds
of importers do not make a module shared: the `__init__.py` of packages, which only pass names on; the users of the
solver, modules that import one of the two files or another user; and, as it is counted next,
`hypergradient/penalty.py`. Shared modules (`_tree`, `linear` with CG, `lower` with accelerated descent, `problem`, the
regularizers) are there for every solver and would stay if this one went: they are not counted. Nor are public modules
whose names the package exports (`newton`): callers import those.

A code line is one with a token on it that is neither comment nor docstring; imports and lone brackets are code lines.
A function is as long as the code lines from its `def` to its end, inner functions included. A literal is a number other
than 0, 1, 2 and 0.5 (with either sign) that has no name: it is neither in an assignment to a CONSTANT of the module
nor the value of a member of an enum.
"""

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1] / "src" / "proxbi"
PUBLIC = "_public.py"  # what the package exports
SOLVER = ("solvers/adaptive.py", "hypergradient/implicit.py")
PENALTY = "hypergradient/penalty.py"
PLAIN = (0, 1, 2, 0.5)
SHOWN = 8  # of the longest functions
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    name: str
    file: str
    line: int
    lines: int


class Literal(NamedTuple):
    value: str
    file: str
    line: int


# What is counted.


def module_file(root: Path, module: str) -> str | None:
    """The file of `proxbi.linear` and the like, relative to the root; None for what is not of this package."""
    parts = module.split(".")
    if parts[0] != root.name:
        return None
    path = root.joinpath(*parts[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return str(candidate.relative_to(root))
    return None


def imported(root: Path, file: str) -> set[str]:
    """The files that this one imports; a name that a package only passes on is imported from where it is made."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((root / file).read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        for alias in node.names:
            made = module_file(root, f"{node.module}.{alias.name}") or module_file(root, node.module)
            if made is not None:
                found.add(origin(root, made, alias.name))
    return found


def origin(root: Path, file: str, name: str) -> str:
    if not file.endswith("__init__.py"):
        return file
    for node in ast.parse((root / file).read_text()).body:
        if isinstance(node, ast.ImportFrom) and any(alias.asname == name for alias in node.names):
            made = module_file(root, str(node.module))
            if made is not None and made != file:
                return origin(root, made, name)
    return file


def counted(root: Path = ROOT) -> list[str]:
    """The files of the default solver, without the penalty."""
    files = [str(path.relative_to(root)) for path in sorted(root.rglob("*.py")) if path.name != "__init__.py"]
    imports = {file: imported(root, file) for file in files}
    importers = {file: {other for other in files if file in imports[other]} for file in files}
    exported = {file for file in imports.get(PUBLIC, set()) if not Path(file).name.startswith("_")}
    own, users = set(SOLVER), {PENALTY}
    while more := {file for file in files if imports[file] & (set(SOLVER) | users - {PENALTY})} - own - users:
        users |= more
    while True:
        below = {file for member in own for file in imports[member] if file in importers} - own - users
        more = {file for file in below if importers[file] <= own | users} - exported
        if not more:
            return sorted(own)
        own |= more


# What is measured.


def code_lines(source: str) -> set[int]:
    """The numbers of the lines with code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def size(file: str, root: Path = ROOT) -> int:
    return len(code_lines((root / file).read_text()))


def functions(file: str, root: Path = ROOT) -> Iterator[Function]:
    source = (root / file).read_text()
    lines = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Definition):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            yield Function(node.name, file, node.lineno, len(lines.intersection(span)))


def literals(file: str, root: Path = ROOT) -> Iterator[Literal]:
    """The numbers without a name."""
    tree = ast.parse((root / file).read_text())
    named = {id(inner) for node in constants(tree) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or id(node) in named:
            continue
        if isinstance(node.value, int | float | complex) and node.value not in PLAIN:
            yield Literal(repr(node.value), file, node.lineno)


def constants(tree: ast.Module) -> Iterator[ast.stmt]:
    """The assignments to CONSTANTS of the module, and those in the bodies of enums."""
    enums = [node for node in tree.body if isinstance(node, ast.ClassDef) and any(is_enum(base) for base in node.bases)]
    for node in [*tree.body, *(inner for enum in enums for inner in enum.body)]:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if names and all(name.isupper() for name in names):
            yield node


def is_enum(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and base.id.endswith("Enum")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    root = parser.parse_args().root.resolve()
    files = counted(root)
    for file in files:
        print(f"{size(file, root):5d}  {file}")
    solver = sum(size(file, root) for file in files)
    print(f"{solver:5d}  the default solver\n{size(PENALTY, root):5d}  {PENALTY}")
    print(f"{solver + size(PENALTY, root):5d}  with the penalty\n\nThe longest functions:")
    found = [function for file in [*files, PENALTY] for function in functions(file, root)]
    for function in sorted(found, key=lambda function: -function.lines)[:SHOWN]:
        print(f"{function.lines:5d}  {function.file}:{function.line} {function.name}")
    unnamed = [literal for file in [*files, PENALTY] for literal in literals(file, root)]
    print(f"\nLiterals without a name: {len(unnamed)}")
    for literal in unnamed:
        print(f"  {literal.file}:{literal.line}: {literal.value}")


if __name__ == "__main__":
    main()
