"""How often the API server is asked again for what somebody goes on looking at."""

from typing import Final

LIST_SECONDS: Final = 5.0
"""Between two lists of jobs."""
_SHARE: Final = 10
"""However many jobs there are, reading takes a tenth of the time at most."""


def pause(seconds: float, *, took: float) -> float:
    """Seconds until something is read again, `seconds` at least, whose reading took so long."""
    return max(seconds, _SHARE * took)
