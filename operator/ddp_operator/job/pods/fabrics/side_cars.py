"""The daemons that some fabrics want beside the trainer: Google's images, in versions of today."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SideCars:
    """The image of each daemon.

    Versions of https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812
    (June 2026); a daemon has to fit the plugin that is installed on the nodes.
    """

    tcpx: str = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.12"
    tcpxo: str = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21"


DEFAULT_SIDE_CARS = SideCars()
