"""`python -m proxbi`."""

from proxbi.cli import main

main()
