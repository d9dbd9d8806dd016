"""Settings of the operator's installation for pods."""

from dataclasses import dataclass

from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods.fabrics import DEFAULT_SIDE_CARS, SideCars


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of the installation that the operator needs to create pods."""

    access: Access
    side_cars: SideCars = DEFAULT_SIDE_CARS
    launcher_image: str = ""
    """Image with the launcher, for jobs with `launcher: inject`; empty where it is unknown."""
    isolate: bool = False
    """Jobs that do not set `isolation` are isolated."""
