"""Settings of all tests: double precision, no silent mixing of dtypes, and reproducible hypothesis examples."""

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

settings.register_profile(
    "proxbi",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("proxbi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no worker waits for another one at the end."""
    items.sort(key=lambda item: item.path.name != "test_paper.py")
