"""The mark of tests that need MNIST."""

import os

import pytest

# The images are not part of the repository. CI sets the variable, so there these tests run; a download would hide in
# the time of a test, and files that are there but broken must fail it.
needs_mnist = pytest.mark.skipif(
    "PROXBI_DATA" not in os.environ, reason="set PROXBI_DATA to a folder with the four MNIST files to run this"
)
