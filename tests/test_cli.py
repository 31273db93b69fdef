"""The commands that run the paper's experiment and its theory, as a person would give them."""

import csv
import os
import subprocess
import sys

import pytest
from tests.test_demo import proxbi


@pytest.mark.slow
def test_reproduce_table1_on_digits_writes_everything(tmp_path):
    out = tmp_path / "results"
    ran = proxbi(
        "reproduce", "table1", "--dataset", "digits", "--cells", "BiO-ITD@0.1,proximal BiO-ITDm:5@0.1", "--out", out
    )
    assert ran.returncode == 0, ran.stderr
    rows = list(csv.DictReader((out / "table1.csv").read_text().splitlines()))
    assert [list(row) for row in rows] == [["method", "gamma", "p", "accuracy_percent", "loss"]] * 2
    assert [row["gamma"] for row in rows] == ["", "5.0"]
    assert float(rows[1]["loss"]) < float(rows[0]["loss"]) < 3
    names = {path.name for path in out.iterdir()}
    currencies = {f"figure1-{currency}.{kind}" for currency in ("inner_steps", "calls") for kind in ("png", "svg")}
    assert names == {"table1.csv", "table1.json", "details.csv", "curves.csv", "report.html"} | currencies
    page = (out / "report.html").read_text()
    assert "What these numbers do and do not show" in page
    assert "--cells" in page  # the command that makes it again, with all that was asked for


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["table1", "--protocol", "other"], "--protocol"),
        (["table1", "--rows", "BiO-XYZ"], "--rows"),
        (["table1", "--p", "0.3"], "--p"),
        pytest.param(["figure1", "--cells", "BiO-AID"], "--cells", marks=pytest.mark.slow),
        pytest.param(["table1", "--seeds", "3"], "--seeds", marks=pytest.mark.slow),
        pytest.param(["table1", "--data", "/no/such/folder"], "/no/such/folder", marks=pytest.mark.slow),
        (["figure1", "--dataset", "digits", "--out", "/dev/null/folder"], "/dev/null/folder"),
    ],
)
def test_wrong_arguments_are_named_and_exit_with_2(arguments, named):
    ran = proxbi("reproduce", *arguments)
    assert ran.returncode == 2
    assert named in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.hours
def test_verify_theory_writes_its_report(tmp_path):
    out = tmp_path / "results"
    ran = proxbi("verify", "theory", "--quick", "--out", out)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "verdicts.csv", "inequalities.csv", "potential.svg", "rates.svg", "complexity.svg"} <= names
    verdicts = list(csv.DictReader((out / "verdicts.csv").read_text().splitlines()))
    assert {row["holds"] for row in verdicts} == {"True"}


@pytest.mark.parametrize(("own", "expected"), [(None, "{cache}/proxbi/programs"), ("/elsewhere", "/elsewhere")])
def test_compiled_programs_are_kept_where_the_user_says_or_in_the_cache(own, expected, tmp_path):
    code = "import jax; from proxbi.cli import _programs; _programs.keep_programs(); print(jax.config.{})"
    code = code.format("jax_compilation_cache_dir")
    places = os.environ | {"XDG_CACHE_HOME": str(tmp_path)} | ({"JAX_COMPILATION_CACHE_DIR": own} if own else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=places)
    assert done.stdout.strip() == expected.format(cache=tmp_path)


def test_the_shell_completes_commands():
    env = {**os.environ, "_PROXBI_COMPLETE": "complete_bash", "COMP_WORDS": "proxbi cl", "COMP_CWORD": "1"}
    ran = subprocess.run([sys.executable, "-m", "proxbi"], capture_output=True, text=True, env=env)
    assert ran.stdout.split() == ["clean"], ran.stderr
