"""The page on scale: what it shows is run, and the tests that it names are there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "scale.md").read_text()


LARGE_TABLES = (Path(__file__).parents[1] / "docs" / "large_tables.md").read_text()


@pytest.mark.parametrize("page", [PAGE, LARGE_TABLES], ids=["scale", "large_tables"])
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    there = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"def {name}(" not in there] == []


def block(name: str, language: str = "python") -> str:
    found = re.search(
        rf"<!-- executed by tests/test_scale.py: {re.escape(name)} -->\n```{language}\n(.*?)```", PAGE, re.DOTALL
    )
    assert found
    return found[1]


@pytest.mark.slow
def test_the_first_example_prints_what_the_page_says() -> None:
    expected = re.search(r"<!-- the output of shard -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert expected
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = plain | {"JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", block("shard")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == expected[1]


@pytest.mark.slow
@pytest.mark.hours  # CI has no minutes left for it
def test_two_processes_by_hand(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("train.py"))
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-e", "-c", block("processes", "bash")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=plain | {"PATH": path},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "5 steps on 2 devices" in ran.stdout
    assert (tmp_path / "checkpoints" / "step-0000000005.safetensors").exists()


@pytest.mark.slow
def test_the_command_cleans_on_a_mesh(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxbi", "mesh", "--rows", "2000", "--steps", "3", "--features", "8"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "seconds of an all-reduce" in ran.stdout
    refused = subprocess.run([*command, "--rank", "1"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "are for --distributed" in refused.stderr
