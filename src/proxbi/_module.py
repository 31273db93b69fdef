"""The base of every class here that is a pytree."""

import equinox as eqx


class Module(eqx.Module):
    """equinox' Module, hashed by identity: `jax.jit` asks for the hash of what it compiles, and arrays have none.

    So `jax.jit(h.prox)` and `jax.jit(hypergradient)` work as one would write them.
    """

    def __hash__(self) -> int:
        return id(self)
