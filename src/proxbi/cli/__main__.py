"""`python -m proxbi.cli`."""

from proxbi.cli import main

main()
