"""Reading IDX files, MNIST's format, plain or gzipped: damaged files raise an error that says what is wrong.

An IDX file of unsigned bytes is two zeros, the byte 8, the number of dimensions, each dimension as a big-endian 32-bit
integer, and then the bytes of the array, row-major.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from jaxtyping import UInt8

MOST_BYTES = 2**30
"""No array larger than this is read: a few kilobytes of gzip can claim, and hold, terabytes of zeros."""

_BLOCK = 2**20


class DataError(ValueError):
    """A data file that cannot be right; the message names it and says what is wrong."""


def read_idx(path: Path, dimensions: int) -> UInt8[np.ndarray, "..."]:
    """The array of unsigned bytes in the IDX file `path`, which must have this many dimensions."""
    try:
        with _open(path) as file:
            shape = _shape(path, file, dimensions)
            content = _content(path, file, math.prod(shape))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file: {str(error).rstrip('.')}.") from error
    return np.frombuffer(content, np.uint8).reshape(shape)


def _open(path: Path) -> BinaryIO:
    """`path` for reading, through gzip if it begins as gzip does: names lie, as some browsers unpack and keep `.gz`."""
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if gzipped else path.open("rb")


def _shape(path: Path, file: BinaryIO, dimensions: int) -> tuple[int, ...]:
    length = 4 + 4 * dimensions
    header = file.read(length)
    magic = bytes([0, 0, 8, dimensions])
    if header[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of unsigned bytes in {dimensions} dimension(s): "
            f"it begins with {header[:4].hex() or 'nothing'}, not {magic.hex()}."
        )
    if len(header) < length:
        raise DataError(f"{path} is truncated: it ends in its header.")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if math.prod(shape) > MOST_BYTES:
        raise DataError(f"{path} claims the shape {shape}, more than the {MOST_BYTES} bytes that are read at most.")
    return shape


def _content(path: Path, file: BinaryIO, size: int) -> bytearray:
    """The `size` bytes that are left in `file`. Memory grows with what is there, not with what the header claims."""
    content = bytearray()
    # One byte more than claimed: it shows trailing data, and at the end of a gzip file makes the checksum be verified.
    while block := file.read(min(_BLOCK, size + 1 - len(content))):
        content += block
        if len(content) > size:
            raise DataError(f"{path} continues after the {size} bytes of data that its header claims.")
    if len(content) < size:
        raise DataError(f"{path} is truncated: it has {len(content)} of the {size} bytes of data its header claims.")
    return content
