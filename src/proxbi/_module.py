"""The base of the classes that are pytrees of numbers and have methods worth compiling on their own."""

import equinox as eqx


class Module(eqx.Module):
    """equinox' Module, hashed by identity: `jax.jit` asks for the hash of what it compiles, and arrays have none.

    So `jax.jit(h.prox)` and `jax.jit(hypergradient)` work as one would write them. (Not for `Problem`: what is hashed
    may be compared, and comparing data sets is dear.)
    """

    def __hash__(self) -> int:
        return id(self)
