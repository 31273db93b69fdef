"""The demo and the command line, as a person would run them."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from proxbi import datasets
from proxbi.experiments import demo

pytestmark = pytest.mark.slow

PROXBI = [sys.executable, "-m", "proxbi.cli"]


def proxbi(*arguments, **options):
    return subprocess.run([*PROXBI, *map(str, arguments)], capture_output=True, text=True, **options)


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "made by the command"
    return proxbi("demo", "--out", folder), folder


def test_the_demo_writes_its_tables_page_and_files(output):
    ran, folder = output
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # no progress bar, no warning: this is not a terminal
    for words in ("proxbi clean digits.npz", "1,000 and 200 trusted", "test accuracy"):
        assert words in ran.stdout
    assert "Open" in ran.stdout
    assert "proxbi demo --decisions" in ran.stdout.replace("\n", " ")
    assert "data:image/png" in (folder / "report.html").read_text()
    assert len(rows(folder / "cleaned.csv")) == 1000
    assert json.loads((folder / "summary.json").read_text())["trusted"] == 200


def test_the_demo_cleans(output):
    truth = json.loads((output[1] / "truth.json").read_text())
    assert truth["detection"]["F1"] > 0.95
    trusted, noisy, kept, best = (row["test accuracy"] for row in truth["accuracies"])
    assert max(trusted, noisy) + 0.01 < kept <= best + 0.01


@pytest.mark.hours  # CI has no minutes left for it
def test_the_command_it_shows_does_the_same(output):
    _, folder = output
    again = proxbi("clean", "digits.npz", "--out", "again.csv", "--seed", 0, cwd=folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "again.csv").read_bytes() == (folder / "cleaned.csv").read_bytes()


@pytest.mark.hours  # CI has no minutes left for it
def test_the_second_round_starts_from_decisions(output):
    """Of somebody who knows the truth; those of the first round stay where they are."""
    _, folder = output
    ran = proxbi("demo", "--out", folder, "--decisions")
    assert ran.returncode == 0, ran.stderr
    assert "The second round" in ran.stdout
    assert len(rows(folder / "decisions.csv")) == demo.DECIDED
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["trusted"], summary["decided"]) == (200 + demo.DECIDED, demo.DECIDED)
    assert json.loads((folder / "truth.json").read_text())["detection"]["F1"] > 0.95


def test_the_data_are_deterministic():
    first, second, other = (demo.spoiled_digits(0.3, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.arrays["y"], second.arrays["y"])
    assert not np.array_equal(first.arrays["y"], other.arrays["y"])
    assert np.sum(first.arrays["y"] != first.truth) == 300


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--noise", "2"], "--noise"),
        (["demo", "--seed", "many"], "--seed"),
        (["demo", "--out", "/dev/null/folder"], "/dev/null/folder"),
        (["no-such-command"], "no-such-command"),
        (["demo", "--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_arguments_are_named_and_exit_with_2(arguments, named):
    ran = proxbi(*arguments)
    assert ran.returncode == 2
    assert named in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_has_an_example():
    assert "Example: proxbi demo" in proxbi("demo", "--help").stdout


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_symmetric_noise_spoils_exactly_the_given_share(rate):
    labels = np.arange(1000) % 7
    noisy = datasets.symmetric_noise(labels, rate, seed=3)
    assert np.sum(noisy != labels) == int(rate * 1000)
    assert set(noisy) <= set(range(7))
    assert np.array_equal(noisy, datasets.symmetric_noise(labels, rate, seed=3))


def test_a_rate_out_of_range_is_refused():
    with pytest.raises(ValueError, match="rate"):
        datasets.symmetric_noise(np.arange(5), 1.0, seed=0)
