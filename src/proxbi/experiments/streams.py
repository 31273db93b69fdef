"""The random numbers behind the published Table 1, drawn again without the library that first drew them.

All come from a Mersenne Twister (MT19937) with the classic integer seeding, of which only the 32-bit outputs are used.
"""

import numpy as np
from jaxtyping import Float, Int

from proxbi.datasets import Labelled

WEIGHT_SEED, NOISE_SEED = 911, 1


def twister(seed: int) -> np.random.MT19937:
    """The generator with the classic seeding from one integer."""
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    return generator


def normals(generator: np.random.MT19937, count: int) -> Float[np.ndarray, " count"]:
    """A block of `count` >= 16 standard normals in float32, by Box and Muller in groups of 16.

    The block is first filled with uniforms of 24 bits. In a group with halves (a, b), 1 - a gives the radius and b the
    angle: cosines replace a, sines b. If 16 does not divide `count`, the last 16 places are made from fresh uniforms.
    """
    if count < 16:
        raise ValueError(f"count must be at least 16, got {count}.")
    block = _uniforms(generator, count)
    for start in range(0, count - 15, 16):
        block[start : start + 16] = _box_muller(block[start : start + 16])
    if count % 16:
        block[-16:] = _box_muller(_uniforms(generator, 16))
    return block


def initial_weights(classes: int = 10, features: int = 785) -> Float[np.ndarray, "classes features"]:
    """The W that every published run starts from: the second block of normals, scaled to variance 2 / classes."""
    generator = twister(WEIGHT_SEED)
    normals(generator, classes * features)  # the first block initialised a model that was then overwritten
    scale = np.float32(np.sqrt(2 / classes))
    return scale * normals(generator, classes * features).reshape(classes, features)


def spoiled(train: Labelled, rate: float, classes: int = 10) -> Labelled:
    """`train` with int(rate * rows) labels moved by 1..classes-1 places, always the same ones for a given rate."""
    rows = len(train.labels)
    generator = twister(NOISE_SEED)
    count = int(rate * rows)
    shift = 1 + generator.random_raw(count) % (classes - 1)
    chosen = _permutation(generator, rows)[:count]
    labels = train.labels.copy()
    labels[chosen] = (labels[chosen] + shift.astype(labels.dtype)) % classes
    return train._replace(labels=labels)


def _permutation(generator: np.random.MT19937, size: int) -> Int[np.ndarray, " size"]:
    """0..size-1 shuffled from the front: place i changes with one of the places i..size-1."""
    order = np.arange(size)
    raw = generator.random_raw(size - 1)
    for place, offset in enumerate(raw % np.arange(size, 1, -1, dtype=raw.dtype)):
        other = place + int(offset)
        order[place], order[other] = order[other], order[place]
    return order


def _uniforms(generator: np.random.MT19937, count: int) -> Float[np.ndarray, " count"]:
    return ((generator.random_raw(count) & (2**24 - 1)) / np.float32(2**24)).astype(np.float32)


def _box_muller(group: Float[np.ndarray, "16"]) -> Float[np.ndarray, "16"]:
    radius = np.sqrt(-2 * np.log(1 - group[:8]))
    angle = np.float32(2 * np.pi) * group[8:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
