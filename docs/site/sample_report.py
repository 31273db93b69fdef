"""The report that cleaning.md shows: the one that its own commands write."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def write(folder: Path) -> Path:
    """Run the page in `folder`, and return where its report is."""
    page = HERE.parent / "cleaning.md"
    subprocess.run([sys.executable, HERE / "snippets.py", page, "--folder", folder], check=True)
    return folder / "report.html"
