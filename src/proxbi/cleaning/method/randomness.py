"""The package's own streams of random numbers."""

import numpy as np
from jaxtyping import UInt64

OWN = 0x70726F78626931
"""Sets these streams apart ("proxbi1"): with the user's seed alone, the sampled rows would be the first of
`default_rng(seed).permutation(n)`, the very rows whose labels somebody with the same seed has corrupted."""


def stream(seed: int) -> np.random.Generator:
    """The stream of random numbers of this seed.

    >>> int(stream(0).integers(1000)) == int(np.random.default_rng(0).integers(1000))
    False
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(OWN,)))


def numbers(seed: int, rows: UInt64[np.ndarray, " rows"]) -> UInt64[np.ndarray, " rows"]:
    """A random number for each row, by its place in the table alone: the same for any division into blocks. No two rows
    of a table have the same one (splitmix64; Steele, Lea and Flood, Fast splittable pseudorandom number generators,
    OOPSLA 2014).

    >>> whole, part = np.arange(9, dtype=np.uint64), np.arange(4, 9, dtype=np.uint64)
    >>> bool(np.all(numbers(0, whole)[4:] == numbers(0, part)))
    True
    """
    key = np.random.SeedSequence(seed, spawn_key=(OWN, 1)).generate_state(1, np.uint64)[0]
    mixed = rows * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
