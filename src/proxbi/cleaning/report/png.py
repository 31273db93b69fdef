"""Thumbnails: pixels as a PNG in a `data:` URL, with the standard library only."""

import struct
import zlib
from base64 import b64encode

import numpy as np
from jaxtyping import Float, Shaped, UInt8

GREY, COLOUR = 0, 2  # PNG's colour types


def thumbnails(images: Shaped[np.ndarray, "rows height width *channels"], side: int) -> list[str]:
    """Each image (grey, or with 3 channels last) as a `data:` URL of a PNG of at most `side` x `side` pixels.

    The smallest of all pixels becomes black and the largest white, unless they are bytes already. Larger images are
    shrunk by averaging blocks, and pixels that are not finite are black.

    >>> thumbnails(np.zeros((1, 8, 8)), side=32)[0][:22]
    'data:image/png;base64,'
    """
    pixels = images if images.dtype == np.uint8 else _bytes(images)
    return [f"data:image/png;base64,{b64encode(_png(_shrunk(image, side))).decode()}" for image in pixels]


def _bytes(
    images: Shaped[np.ndarray, "rows height width *channels"],
) -> UInt8[np.ndarray, "rows height width *channels"]:
    values: Float[np.ndarray, "..."] = images.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    scaled = (np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return np.round(255 * scaled).astype(np.uint8)


def _shrunk(image: UInt8[np.ndarray, "height width *channels"], side: int) -> UInt8[np.ndarray, "h w *channels"]:
    """Averages over blocks as even as whole pixels allow; height and width are shrunk by the same factor."""
    longest = max(image.shape[:2])
    for axis in (0, 1) if longest > side else ():
        size = image.shape[axis]
        edges = np.linspace(0, size, max(1, round(size * side / longest)) + 1).astype(int)
        sums = np.add.reduceat(image.astype(np.float64), edges[:-1], axis=axis)
        shape = [-1 if a == axis else 1 for a in range(image.ndim)]
        image = np.round(sums / np.diff(edges).reshape(shape)).astype(np.uint8)
    return image


def _png(image: UInt8[np.ndarray, "height width *channels"]) -> bytes:
    """The three chunks of a PNG; each row of pixels begins with a 0, for "no filter"."""
    height, width = image.shape[:2]
    rows = np.hstack([np.zeros((height, 1), np.uint8), image.reshape(height, -1)])
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if image.ndim == 2 else COLOUR, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
