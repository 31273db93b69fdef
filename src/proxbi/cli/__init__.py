"""The command line: argument parsing; each command is one call."""

import sys
from importlib.util import find_spec

if find_spec("typer") is None or find_spec("rich") is None:
    sys.exit("proxbi: the command line needs typer and rich: pip install 'proxbi[cli]'.")

from proxbi.cli import _clean as _clean  # each module adds its commands to the app
from proxbi.cli import _demo as _demo
from proxbi.cli import _mesh as _mesh
from proxbi.cli import _reproduce as _reproduce
from proxbi.cli import _verify as _verify
from proxbi.cli._app import app
from proxbi.cli._interrupt import INTERRUPTED, watch
from proxbi.cli._output import write_any_letter

CLOSED_PIPE = 141
"""The exit code that shells use where whoever reads the output wants no more of it: 128 and the number of SIGPIPE."""


def main() -> None:
    """Run the command line. Bad arguments and files end in one sentence and exit code 2, a failed run in code 1, Ctrl-C
    in 130, and SIGTERM in 75.
    """
    write_any_letter()
    with watch:
        code, message = _run()
        if watch.seen or code == INTERRUPTED:  # whatever became of the exception on its way
            code, message = watch.end
            # If Ctrl-C came within an `exec`, as dataclasses use it, Python would end by the signal and not by the
            # code, even where the exception was handled, unless another `exec` went well since.
            exec("")
    if message:
        print(f"proxbi: {message}", file=sys.stderr)
    sys.exit(code)


def _run() -> tuple[str | int | None, str]:
    """The exit code of a command, and the sentence that goes with it."""
    try:
        app(prog_name="proxbi")
    except SystemExit as end:  # all commands end so, those that succeed as well
        return (CLOSED_PIPE if isinstance(end.__context__, BrokenPipeError) else end.code), ""
    except KeyboardInterrupt:
        return INTERRUPTED, ""
    except Exception as error:
        if watch.seen:  # a library made this of Ctrl-C
            return INTERRUPTED, ""
        return _code(error), _sentence(error)
    return 0, ""


def _sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"this command needs {error.name}, which is not installed: pip install 'proxbi[all]'."
    return str(error) or type(error).__name__


def _code(error: Exception) -> int:
    """1 if a run failed, 2 if its arguments or files are wrong, 75 if another process of it was lost; any other error
    is a bug, and is raised.
    """
    if isinstance(error, ValueError | OSError | ImportError | MemoryError):
        return 2
    from proxbi.distributed._ranks import AGAIN, RankLostError  # here, as it loads JAX
    from proxbi.result import SolveError

    if isinstance(error, RankLostError):
        return AGAIN
    if isinstance(error, SolveError):
        return 1
    raise error
