"""Digests of arrays that lie on a mesh: the same however they are spread.

A row of numbers is turned into 32-bit words; each word is mixed with its place, and the results are added modulo 2^32.
Sums of integers do not depend on their order, so neither does the digest on the number of devices. Two mixes make it 64
bits: enough to tell data that were changed by mistake, and no protection against those who want to deceive.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt32

_MIX = (np.uint32(0x9E3779B1), np.uint32(0x85EBCA77))  # odd numbers of xxHash


_SEEN = 1000  # rows at each end of an array that stand for it where processes compare what they were given


def described(tree: PyTree) -> list[str]:
    """Names, types, shapes and some of the rows of the arrays that a process was given."""
    return [f"{jax.tree_util.keystr(path)}{_ends(leaf)}" for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _ends(leaf: Any) -> str:
    ends = leaf if np.ndim(leaf) == 0 else np.concatenate([np.asarray(leaf[:_SEEN]), np.asarray(leaf[-_SEEN:])])
    return f"{leaf.dtype}{leaf.shape}{hashlib.sha256(np.asarray(ends).tobytes()).hexdigest()}"


def digests(tree: PyTree) -> PyTree:
    """The tree with a digest in the place of each array."""
    return jax.tree.map(_described, tree)


def _described(leaf: Array) -> tuple[str, list[int]]:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", [int(word) for word in _digest(jnp.asarray(leaf))]


@jax.jit
def _digest(array: Array) -> UInt32[Array, "2"]:
    words = _words(array)
    return jnp.stack([jnp.sum(_mixed(words, mix), dtype=jnp.uint32) for mix in _MIX])


def _words(array: Array) -> UInt32[Array, "..."]:
    """The bits of an array as 32-bit words."""
    if array.dtype == jnp.bool_ or array.dtype.itemsize < _WORD:
        if array.dtype != jnp.bool_:
            array = jax.lax.bitcast_convert_type(array, jnp.dtype(f"u{array.dtype.itemsize}"))
        return array.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(array, jnp.uint32)


_WORD = 4  # bytes


def _mixed(words: UInt32[Array, "..."], mix: np.uint32) -> UInt32[Array, "..."]:
    value = words * jnp.uint32(mix)
    for axis in range(words.ndim):  # the place along each axis, so that no axis need be merged with that of the rows
        place = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        value = (value ^ (value >> 15)) * jnp.uint32(mix) + place * jnp.uint32(_MIX[0] ^ np.uint32(axis))
    value = value ^ (value >> 13)
    return value * jnp.uint32(_MIX[1]) ^ (value >> 16)
