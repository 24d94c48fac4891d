"""Settings that all rooms' tests share."""

import os

from hypothesis import HealthCheck, settings

# The same examples in every run: a red test is red because of the code, never because of luck. A
# machine that others use too makes timings unreliable; pytest-timeout bounds the whole test.
settings.register_profile(
    "meshwright", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("meshwright")

# Runs that tests make are nobody's history.
os.environ.setdefault("MESHWRIGHT_HISTORY", os.devnull)
