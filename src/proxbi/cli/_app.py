"""The command line itself: options before the command."""

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bilevel optimization with an upper-level prox: min_x f(x, y*(x)) + h(x).",
)


def _version(wanted: bool) -> None:
    if wanted:
        from proxbi import __version__

        typer.echo(f"proxbi {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before the command."""
