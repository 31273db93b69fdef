"""The command line: argument parsing; each command is one call."""

import sys
from importlib.util import find_spec

if find_spec("typer") is None or find_spec("rich") is None:
    sys.exit("proxbi: the command line needs typer and rich: pip install 'proxbi[cli]'.")

from proxbi.cli import _clean as _clean  # each module adds its commands to the app
from proxbi.cli import _demo as _demo
from proxbi.cli import _reproduce as _reproduce
from proxbi.cli import _verify as _verify
from proxbi.cli._app import app


def main() -> None:
    """Run the command line. Bad arguments and files end in one sentence and exit code 2, a failed run in code 1."""
    from proxbi.result import SolveError

    try:
        app()
    except SolveError as error:
        _fail(str(error), 1)
    except (ValueError, OSError, ImportError) as error:
        _fail(str(error), 2)


def _fail(message: str, code: int) -> None:
    print(f"proxbi: {message}", file=sys.stderr)
    sys.exit(code)
