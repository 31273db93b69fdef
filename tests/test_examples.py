"""The gallery: examples are short, have a figure of a reasonable size, and their small forms run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gallery

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
IN_CI = {"01_penalties", "05_sources", "06_representation", "11_low_rank", "14_network", "15_devices"}
"""The quickest, of at most 10 s of processor time, run each time; all of them run before a release."""


def _marks(path: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if path.stem in IN_CI else [pytest.mark.slow, pytest.mark.hours]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=_marks(path)) for path in EXAMPLES])
def test_the_small_form_runs_and_draws(path: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = tmp_path / "figure.png"
    done = subprocess.run([sys.executable, path, "--small", "--out", out], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert out.stat().st_size > 5_000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_has_a_figure(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 120
    figure = gallery.FIGURES / f"{path.stem.partition('_')[2]}.png"
    assert 5_000 < figure.stat().st_size <= 62_000


def test_every_example_has_a_page() -> None:
    pages = gallery.pages()
    assert len(pages) == len(EXAMPLES) + 1
    for example in gallery.examples():
        assert example.title
        assert example.text.strip()
        assert f"]({example.name}.md)" in pages["gallery/index.md"]
