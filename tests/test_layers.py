"""Imports go one way, and the mathematics knows nothing of time, files, printing or plots."""

import ast
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import proxbi

ROOT = Path(proxbi.__file__).parent
ORDER = [
    ["_tree", "_check", "_compile", "_module", "_place"],
    ["regularizers"],
    ["rows"],
    ["_functions"],
    ["problem"],
    ["_hosted"],
    ["glm"],
    ["linear"],
    ["_lbfgs"],
    ["_damped"],
    ["_lower_level"],
    ["lower"],
    ["newton"],
    ["hypergradient"],
    ["certificate"],
    ["solvers"],
    ["_validate"],
    ["_own_loop"],
    ["theory"],
    ["analytic"],
    ["_diagnose"],
    ["_loop"],
    ["result"],
    ["checkpoint"],
    ["_saved"],
    ["_lock"],
    ["_memory"],
    ["callbacks"],
    ["_engine"],
    ["_estimate"],
    ["_cause"],
    ["_driver"],
    ["_streamed"],
    ["_minimize"],
    ["_batch"],
    ["_many"],
    ["_compare"],
    ["_programs", "_process"],
    ["distributed"],
    ["_public"],
    ["datasets"],
    ["plot"],
    ["report"],
    ["cleaning"],
    ["linear_model"],
    ["experiments"],
    ["cli"],
    ["__main__"],
]
"""The layers from the bottom up: a module may import those of lower layers, and its own package."""
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
PURE = [name for names in ORDER[: LEVEL["result"]] for name in names]
EARTHLY = {"time", "datetime", "os", "io", "pathlib", "shutil", "signal", "threading", "subprocess", "logging", "sys"}
OPTIONAL = {"dask", "distributed", "joblib", "matplotlib", "pandas", "pyarrow", "sklearn", "typer", "rich", "jinja2"}


def files() -> dict[str, Path]:
    return {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"}


def layer(name: str) -> str:
    """The module or package of `proxbi` that a file belongs to."""
    return Path(name).parts[0].removesuffix(".py")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node)


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it, as `proxbi.linear` and the like."""
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "proxbi":
                yield from (
                    f"proxbi.{alias.name}" if alias.name in LEVEL else f"proxbi:{alias.name}" for alias in node.names
                )
            else:
                yield str(node.module)


def test_every_module_has_a_layer() -> None:
    assert {layer(name) for name in files()} <= set(LEVEL)


@pytest.mark.parametrize("name", files())
def test_imports_go_down(name: str) -> None:
    own = layer(name)
    for module in imports(files()[name]):
        if module.startswith("proxbi:"):  # a name of the package itself, which imports everything up to `_compare`
            assert LEVEL[own] > LEVEL["_compare"], f"{name} imports {module}"
        elif module.startswith("proxbi."):
            used = module.split(".")[1]
            assert used == own or LEVEL[used] < LEVEL[own], f"{name} imports {module}"


@pytest.mark.parametrize("name", [name for name in files() if layer(name) in PURE])
def test_the_mathematics_is_pure(name: str) -> None:
    used = {module.split(".")[0] for module in imports(files()[name])}
    assert not used & (EARTHLY | OPTIONAL)
    tree = ast.parse(files()[name].read_text())
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"print", "open", "input"}


def test_importing_is_light() -> None:
    """No optional package is imported and no JAX backend started, which would forbid `jax.distributed.initialize`."""
    code = (
        "import sys, proxbi, proxbi.__main__\n"
        "assert 'jax' not in sys.modules\n"
        "import jax\n"
        "proxbi.minimize\n"
        "from jax._src.xla_bridge import backends_are_initialized\n"
        f"print(sorted({OPTIONAL!r} & set(sys.modules)), backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]


def test_a_star_imports_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from proxbi import *", names)
    assert {"minimize", "Problem", "L1"} <= set(names)


def test_what_is_public_is_there() -> None:
    names = [name for name in dir(proxbi) if not name.startswith("_")]
    assert {"Problem", "minimize", "run", "ProxBiO", "paper_solver", "AID", "ITD", "CG", "L1"} <= set(names)
    for name in proxbi.PAPER_SOLVERS:
        assert isinstance(
            proxbi.paper_solver(name, alpha=0.1, beta=0.1, T=2, eta=0.5 if name.endswith("m") else None), proxbi.ProxBiO
        )


MODULES = {"callbacks", "certificate", "checkpoint", "linear", "lower", "newton", "problem", "result"}
PACKAGES = {"analytic", "cleaning", "cli", "datasets", "experiments", "glm", "hypergradient", "linear_model", "plot"}
PACKAGES |= {"distributed", "regularizers", "report", "rows", "solvers", "theory"}


def test_modules_without_public_names_are_private() -> None:
    assert {name for name in LEVEL if not name.startswith("_")} == MODULES | PACKAGES
    exported = {name: getattr(proxbi, name) for name in dir(proxbi) if not name.startswith("_")}
    modules = {name for name, value in exported.items() if isinstance(value, types.ModuleType)}
    assert modules <= MODULES | PACKAGES
    for module in MODULES:  # what is public in it can be had from the package itself
        assert any(getattr(value, "__module__", "") == f"proxbi.{module}" for value in exported.values()), module
    for name in set(exported) - modules:  # no function hides a module, and no module a function
        assert not (ROOT / f"{name}.py").exists(), name


@pytest.mark.parametrize(
    "base",
    ["Callback", "ControlledHypergradient", "Hypergradient", "LinearSolver", "LowerSolver", "Regularizer", "Solver"],
)
def test_base_classes_are_public(base: str) -> None:
    assert getattr(proxbi, base).__subclasses__(), "a class that something in the package inherits from"


def test_compare_is_public() -> None:
    assert callable(proxbi.compare)
