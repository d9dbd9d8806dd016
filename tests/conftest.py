"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code: on a busy one, any may be
# slow.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")
