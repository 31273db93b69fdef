"""The base of the classes that are pytrees of numbers and have methods worth compiling on their own."""

import equinox as eqx


class Module(eqx.Module):
    """The Module of equinox, hashed by identity: `jax.jit` needs the hash of what it compiles, and arrays have none.

    So `jax.jit(h.prox)` and `jax.jit(hypergradient)` work as written. (Not for `Problem`: what is hashed may be
    compared, and comparing data sets is expensive.)
    """

    def __hash__(self) -> int:
        return id(self)
