"""`proxbi` and `python -m proxbi`."""

import sys


def main() -> None:
    """The command line. Nothing is imported before Ctrl-C can end it in a sentence."""
    try:
        from proxbi.cli import main as run
    except KeyboardInterrupt:
        exec("")  # see `proxbi.cli.main`
        print("proxbi: interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
