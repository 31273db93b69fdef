r"""Which rows batch number t holds: a function of (seed, t) alone, so a run is resumed anywhere by remembering t.

An epoch of n rows in batches of b has n // b batches; the n % b rows left over are others in each epoch. Batch number t
holds the rows pi_e(j b), ..., pi_e(j b + b - 1) with e, j = divmod(t, n // b) and pi_e a permutation of 0..n-1.

pi_e is not stored. It is a Feistel cipher on pairs (l, r) of a and c bits, 2^(a + c) >= n,

    l <- l xor F_k(r),    r <- r xor F_k'(l),    ...

each of which steps is undone by itself, so that their sequence is a permutation whatever F is; a value of n or more is
enciphered again until it is below n ("cycle walking"), which keeps it one. As 2^(a + c) < 2 n, two trials on average.
On a few bits a cipher reaches only some of the permutations: up to 1,024 rows are sorted by random numbers instead.
Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from proxbi import _check

Seed = UInt32[Array, "2"]
_ROUNDS = 4  # pairs of steps; from three on, no dependence on the row's number was seen
_FEW = 1024  # rows; 6,000 epochs of 2,000 rows show no preference, those of 6 rows did
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35  # of Fibonacci hashing and of MurmurHash3's finaliser


class Sampling(eqx.Module):
    """Batches of `batch` rows out of `rows`, by number.

    **Arguments:**

    - `batch`: how many rows there are in a batch.
    - `rows`: how many there are in all.
    - `order`: `"epochs"` goes through all of them in a new order each time, `"replacement"` draws each row
      independently.

    >>> sampling = Sampling(4, 12)
    >>> seed = seed_of(jax.random.key(0))
    >>> sorted(int(i) for t in range(3) for i in sampling.index(seed, t))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    """

    batch: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    order: Literal["epochs", "replacement"] = eqx.field(static=True, default="epochs")

    def __check_init__(self) -> None:
        _check.positive_int("batch", self.batch)
        if self.order not in ("epochs", "replacement"):
            raise ValueError(f'sampling must be "epochs" or "replacement", got {self.order!r}.')
        if self.batch > self.rows:
            raise ValueError(f"batch is {self.batch} rows, but there are only {self.rows}.")

    def index(self, seed: Seed, number: Any) -> Int[Array, " batch"]:
        """The rows of batch `number`."""
        number = jnp.asarray(number, jnp.uint32)
        if self.order == "replacement":
            key = jax.random.fold_in(jax.random.wrap_key_data(seed), number)
            return jax.random.randint(key, (self.batch,), 0, self.rows, jnp.int32)
        epoch, place = jnp.divmod(number, jnp.uint32(self.rows // self.batch))
        if self.rows <= _FEW:
            shuffled = jax.random.permutation(jax.random.fold_in(jax.random.wrap_key_data(seed), epoch), self.rows)
            start = (place * jnp.uint32(self.batch)).astype(jnp.int32)
            return jax.lax.dynamic_slice_in_dim(shuffled.astype(jnp.int32), start, self.batch)
        places = place * jnp.uint32(self.batch) + jnp.arange(self.batch, dtype=jnp.uint32)
        return _permuted(places, self.rows, seed, epoch).astype(jnp.int32)


def seed_of(key: PRNGKeyArray) -> Seed:
    """Two words that all batches of a run are drawn by, from a `key` of `jax.random`. Example: `Sampling`."""
    return jax.random.bits(key, (2,), jnp.uint32)


def _permuted(places: UInt32[Array, " batch"], rows: int, seed: Seed, epoch: Array) -> UInt32[Array, " batch"]:
    bits = max((rows - 1).bit_length(), 2)
    low = bits // 2
    masks = jnp.uint32(2 ** (bits - low) - 1), jnp.uint32(2**low - 1)

    def enciphered(value: Array) -> Array:
        left, right = value >> low, value & masks[1]
        for k in range(_ROUNDS):
            left = left ^ (_hash(right, seed[0], epoch, 2 * k) & masks[0])
            right = right ^ (_hash(left, seed[1], epoch, 2 * k + 1) & masks[1])
        return (left << low) | right

    def walk(value: Array) -> Array:
        return jnp.where(value < rows, value, enciphered(value))

    return jax.lax.while_loop(lambda value: jnp.any(value >= rows), walk, enciphered(places))


def _hash(value: Array, seed: Array, epoch: Array, number: int) -> Array:
    mixed = value * jnp.uint32(_GOLDEN) + seed
    for word in (epoch, jnp.uint32(number)):
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(_MIX_1) + word
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(_MIX_2)
    return mixed ^ (mixed >> 16)
