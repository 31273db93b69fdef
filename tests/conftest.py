"""Settings of all tests: double precision, no silent mixing of dtypes, and reproducible hypothesis examples."""

import jax
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
