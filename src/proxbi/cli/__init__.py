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
from proxbi.cli._interrupt import INTERRUPTED, watch
from proxbi.cli._output import write_any_letter


def main() -> None:
    """Run the command line. Bad arguments and files end in one sentence and exit code 2, a failed run in code 1, Ctrl-C
    in 130.
    """
    write_any_letter()
    with watch:
        code, message = _run()
        if watch.seen or code == INTERRUPTED:  # whatever became of the exception on its way
            code, message = INTERRUPTED, "interrupted."
    if message:
        print(f"proxbi: {message}", file=sys.stderr)
    sys.exit(code)


def _run() -> tuple[str | int | None, str]:
    """The exit code of a command, and the sentence that goes with it."""
    from proxbi.result import SolveError

    try:
        app()
    except SystemExit as end:  # all commands end so, those that succeed as well
        return end.code, ""
    except KeyboardInterrupt:
        return INTERRUPTED, ""
    except SolveError as error:
        return 1, str(error)
    except MemoryError as error:
        return 2, f"there is not enough memory. {error}".strip()
    except (ValueError, OSError, ImportError) as error:
        return 2, str(error)
    return 0, ""
