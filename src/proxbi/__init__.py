"""proxbi: bilevel problems with an upper-level prox, min_x f(x, y*(x)) + h(x) with y*(x) = argmin_y g(x, y)."""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxbi._public import *  # noqa: F403 (for type checkers only, who read the list there)

__version__: str

# Imported when first asked for: JAX takes seconds to load, and `proxbi --help` or a wrong option need nothing of it.


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _import_module("importlib.metadata").version(__name__)
    if name == "__all__":  # of `from proxbi import *`
        return sorted(_names())
    if not name.startswith("_"):
        if _find_spec(f"{__name__}.{name}") is not None:  # a module, which is imported without the public names
            return _import_module(f"{__name__}.{name}")
        if name in (public := _names()):
            globals().update(public)
            return public[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})


def _names() -> dict[str, Any]:
    public = vars(_import_module("proxbi._public"))
    return {name: value for name, value in public.items() if not name.startswith("_")}
