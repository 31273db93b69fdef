"""Handwritten digits: scikit-learn's small ones, and MNIST."""

import os
import sys
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from proxbi.datasets.fetch import DownloadError, RemoteFile, fetch
from proxbi.datasets.idx import DataError, read_idx
from proxbi.datasets.labelled import Labelled

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
"""Where MNIST is downloaded from, the first that answers."""

FILES = (
    RemoteFile(
        "train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    RemoteFile("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    RemoteFile(
        "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    RemoteFile("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
"""The files of MNIST as they were first published: training images and labels, test images and labels."""

VARIABLE = "PROXBI_DATA"
SIDE, CLASSES = 28, 10


class MNIST(NamedTuple):
    """The two parts of MNIST, rows in the order of the files.

    Example: `mnist`.
    """

    train: Labelled
    """60,000 rows."""
    test: Labelled
    """10,000 rows."""


def digits() -> Labelled:
    """The 1,797 handwritten digits that scikit-learn ships: 64 pixels in [0, 1] and a constant 1; nothing is
    downloaded.

    >>> digits().features.shape
    (1797, 65)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("datasets.digits needs scikit-learn: pip install 'proxbi[clean]'.") from error
    images = load_digits()
    pixels = images.data.astype(np.float32) / 16
    return Labelled(np.hstack([pixels, np.ones((len(pixels), 1), np.float32)]), images.target.astype(np.int32))


def mnist(folder: str | PathLike[str] | None = None) -> MNIST:
    """The 60,000 training and 10,000 test images of MNIST: 784 raw pixels a row, uint8 in 0..255, and int32 labels.

    Pixels are not scaled: `standardize(mnist().train.features)` is what most models want.

    The four IDX files are searched in the directory `folder`; by default in the one given by the environment variable
    `PROXBI_DATA`; without that, in the user's cache, into which missing files are downloaded (12 MB, each checked by
    its SHA-256). They may be gzipped or not, and spelt `train-images-idx3-ubyte` or `train-images.idx3-ubyte`.

    Raises `FileNotFoundError` if a given directory lacks a file, `DataError` if a file is damaged or does not contain
    what its name says, `DownloadError` if the download fails.

    LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, Proc. IEEE 86, 1998.

    **Returns:** the two parts, as `MNIST`. Example: `digits`, which needs no download.
    """
    images, labels, test_images, test_labels = _paths(folder)
    return MNIST(_labelled(images, labels), _labelled(test_images, test_labels))


def standardize(images: UInt8[np.ndarray, "rows pixels"], *, bias: bool = True) -> Float[np.ndarray, "rows features"]:
    """`(v/255 - 0.1307) / 0.3081` for each pixel v, in float32, and with `bias` a last column of ones.

    The two numbers are the mean and the standard deviation of the pixels of MNIST's training images.

    **Arguments:**

    - `images`: rows of raw pixels, uint8.
    - `bias`: whether to add the column of ones.

    >>> standardize(np.array([[0, 255]], np.uint8))
    array([[-0.42421296,  2.8214867 ,  1.        ]], dtype=float32)
    """
    if images.dtype != np.uint8 or images.ndim != 2:
        raise TypeError(f"images must be rows of raw pixels, uint8, got {images.dtype} of shape {images.shape}.")
    rows, pixels = images.shape
    features = np.ones((rows, pixels + bias), np.float32)
    scaled = features[:, :pixels]
    # In place: for all of MNIST each copy would be 188 MB.
    np.divide(images, np.float32(255), out=scaled)
    scaled -= np.float32(0.1307)
    scaled /= np.float32(0.3081)
    return features


def cache_folder() -> Path:
    """The directory in the user's cache where MNIST is kept."""
    return user_cache() / "proxbi" / "mnist"


def user_cache() -> Path:
    """The user's cache directory."""
    if Path(os.environ.get("XDG_CACHE_HOME", "")).is_absolute():  # its specification: a relative one is ignored
        return Path(os.environ["XDG_CACHE_HOME"])
    try:
        home = Path.home()
    except RuntimeError as error:
        raise FileNotFoundError(f"There is no home directory to keep MNIST in; set {VARIABLE} to another.") from error
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _paths(folder: str | PathLike[str] | None) -> list[Path]:
    """Where the four files are, in the order of `FILES`."""
    if folder is not None:
        return [_named(Path(folder), file.name, "folder") for file in FILES]
    if os.environ.get(VARIABLE):
        return [_named(Path(os.environ[VARIABLE]), file.name, VARIABLE) for file in FILES]
    cache = cache_folder()
    return [_find(cache, file.name) or _downloaded(file, cache) for file in FILES]


def _find(folder: Path, name: str) -> Path | None:
    plain = name.removesuffix(".gz")
    stem, kind, ending = plain.rsplit("-", 2)
    spellings = (plain, f"{stem}.{kind}-{ending}")
    candidates = (folder / (spelling + suffix) for spelling in spellings for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _named(folder: Path, name: str, origin: str) -> Path:
    """The file in a directory the user chose: a missing file is not searched elsewhere."""
    found = _find(folder.expanduser(), name)
    if found is None:
        lacks = f"has no {name.removesuffix('.gz')} or {name}" if folder.expanduser().is_dir() else "is not a directory"
        raise FileNotFoundError(f"{folder} (given by {origin}) {lacks}; it must contain the four files of MNIST.")
    return found


def _downloaded(file: RemoteFile, folder: Path) -> Path:
    try:
        return fetch(file, MIRRORS, folder)
    except DownloadError as error:
        names = ", ".join(each.name for each in FILES)
        raise DownloadError(
            f"MNIST could not be downloaded ({error}): get {names} by other means and put them into {folder}, or "
            f"into the directory given by the environment variable {VARIABLE}."
        ) from error


def _labelled(images_path: Path, labels_path: Path) -> Labelled:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (SIDE, SIDE):
        height, width = images.shape[1:]
        raise DataError(f"{images_path} has images of {height} x {width} pixels, not {SIDE} x {SIDE}.")
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels.")
    if len(images) == 0:
        raise DataError(f"{images_path} has no images in it.")
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise DataError(f"{labels_path} has the label {labels[wrong[0]]} at row {wrong[0]}, not one of 0..9.")
    return Labelled(images.reshape(len(images), SIDE * SIDE), labels.astype(np.int32))
