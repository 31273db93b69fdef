"""Data for examples and experiments, and label noise to spoil it with."""

from proxbi.datasets.fetch import DownloadError
from proxbi.datasets.handwritten import MNIST, digits, mnist, standardize
from proxbi.datasets.idx import DataError
from proxbi.datasets.labelled import Labelled
from proxbi.datasets.noise import (
    NOISE_KINDS,
    add_noise,
    class_dependent_noise,
    confused_digits,
    pairwise_noise,
    symmetric_noise,
)
from proxbi.datasets.parquet import ParquetRows

__all__ = [
    "ParquetRows",
    "Labelled",
    "MNIST",
    "digits",
    "mnist",
    "standardize",
    "DataError",
    "DownloadError",
    "NOISE_KINDS",
    "add_noise",
    "symmetric_noise",
    "pairwise_noise",
    "class_dependent_noise",
    "confused_digits",
]
