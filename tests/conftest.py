"""Settings that all rooms' tests share."""

from hypothesis import settings

# A machine that others use too makes timings unreliable; pytest-timeout bounds the whole test.
settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")
