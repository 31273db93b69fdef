"""The demo and the command line, as a person would run them."""

import csv
import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from proxbi import datasets
from proxbi.experiments import demo

PROXBI = [sys.executable, "-m", "proxbi.cli"]


def proxbi(*arguments, **options):
    return subprocess.run([*PROXBI, *map(str, arguments)], capture_output=True, text=True, **options)


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "made by the command"
    return proxbi("demo", "--steps", 100, "--out", folder), folder


def test_the_demo_writes_its_table_plot_and_files(output):
    ran, folder = output
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # no progress bar, no warning: this is not a terminal
    assert "test accuracy" in ran.stdout
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "demo.svg").read_text()
    assert len(rows(folder / "weights.csv")) == 1000
    assert [int(row["step"]) for row in rows(folder / "history.csv")] == list(range(10, 101, 10))


def test_the_demo_cleans(output):
    summary = json.loads((output[1] / "summary.json").read_text())
    accuracy = {row["trained on"]: row["test accuracy"] for row in summary["table"]}
    assert accuracy["noisy rows, learned weights"] > accuracy["noisy rows"] + 0.02
    assert summary["detection"]["F1"] > 0.85


def test_the_demo_is_deterministic():
    first, second = (demo.run(0.3, steps=5, seed=1).weights for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, demo.run(0.3, steps=5, seed=2).weights)


def test_the_progress_bar_is_drawn_on_a_terminal(tmp_path):
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [*PROXBI, "demo", "--steps", "20", "--out", tmp_path], stdout=subprocess.DEVNULL, stderr=secondary
    ) as process:
        os.close(secondary)
        drawn = b""
        while chunk := _read(primary):
            drawn += chunk
    os.close(primary)
    assert process.returncode == 0
    assert b"cleaning" in drawn
    assert b"20/20" in drawn


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--noise", "2"], "--noise"),
        (["demo", "--steps", "0"], "--steps"),
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
