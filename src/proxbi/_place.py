"""Where the vectors of a run are, and who takes part in it. Here: on one device, and this process alone.

`proxbi.distributed` overrides all of it for a mesh of devices. Solvers need not know.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Place:
    """One device."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return True

    @property
    def shared(self) -> bool:
        """Whether other processes take part, which must take the same decisions."""
        return False

    def entered(self, problem: Any, solver: Any, x0: PyTree, y0: PyTree) -> tuple[Any, PyTree, PyTree]:
        """The problem, x0 and y0 as a run needs them."""
        return problem, x0, y0

    def places_for(self, rows: int) -> int:
        """The length of an axis of x that has an entry for each of so many rows."""
        return rows

    def kept(self, state: PyTree) -> PyTree:
        """The state of a solver, constrained to stay on its devices; for compiled code."""
        return state

    def shapes(self, state: PyTree) -> PyTree:
        """Those of the state as `fetched` has it."""
        return jax.eval_shape(lambda: state)

    def put(self, state: PyTree) -> PyTree:
        """A state of `fetched`, where it belongs."""
        return state

    def fetched(self, state: PyTree) -> PyTree:
        """A state as it would be on one device."""
        return state

    def fetched_x(self, x: PyTree) -> PyTree:
        """x as it would be on one device."""
        return x

    def fetched_y(self, y: PyTree) -> PyTree:
        """y as it would be on one device."""
        return y

    def orthonormal(self, columns: Float[Array, "n r"]) -> Float[Array, "n k"]:
        """A basis of what the columns, shaped as a flat x, span."""
        return jnp.linalg.qr(columns)[0]

    def agreed(self, numbers: list[int]) -> list[int]:
        """The numbers of the first process that has one which is not 0, for each of them; in all processes alike."""
        return numbers

    def by_first(self, action: Callable[[], None]) -> None:
        """Let the first process do it, and wait; what it raises is raised everywhere."""
        action()

    def together(self) -> AbstractContextManager[None]:
        """Around what all processes do: it says so where one of them is lost."""
        return nullcontext()

    def require_alike(self, **settings: Any) -> None:
        """Refuse settings in which the processes differ, by name."""

    def described(self, problem: Any) -> dict[str, Any]:
        """What tells the problem from another one, by the names of its fields."""
        return {field.name: getattr(problem, field.name) for field in fields(problem)}


HERE = Place()
