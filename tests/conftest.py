"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says more of the machine than of the code: on a busy one, any may be
# slow.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
