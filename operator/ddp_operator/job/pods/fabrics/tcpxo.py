"""GPUDirect-TCPXO (FasTrak): a3-megagpu-8g, eight network cards and a daemon that receives.

Held against gpudirect-tcpxo/nccl-test-latest.yaml and best-practice.md (native side car, start-up
probe, environment script) of
https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812 (June 2026).
"""

from copy import deepcopy
from typing import Any, Final

from ddp_operator.job.pods.fabrics import edits
from ddp_operator.job.pods.fabrics.side_cars import SideCars
from ddp_operator.ports import Manifest

DAEMON: Final = "tcpxo-daemon"
_ENTRYPOINT: Final = "/fts/entrypoint_rxdm_container.sh"
_HEALTHY: Final = "/run/health-check"
"""Written by the daemon when it is ready; it takes no name with an underscore."""
_APERTURES: Final = "/dev/aperture_devices"
_SCRIPT: Final = f"{edits.LIBRARIES}/nccl-env-profile.sh"
_NETWORKS: Final = tuple((f"eth{n}", f"vpc{n}") for n in range(1, 9))
_DEVICES: Final = (
    *(f"/dev/nvidia{n}" for n in range(8)),
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/dmabuf_import_helper",
)
_PROBE_SECONDS: Final = 5
_PROBES: Final = 24
"""Two minutes: it takes half a minute as a rule, and a node where it never gets ready is bad."""


def tcpxo(pod: Manifest, trainer: str, side_cars: SideCars) -> dict[str, Any]:
    """Return the pod with TCPXO."""
    draft: edits.Draft = deepcopy(dict(pod))
    edits.give_interfaces(draft, _NETWORKS)
    edits.give_devices(draft, DAEMON, _DEVICES)
    edits.add_host_path(draft, "ddp-nvidia-libraries", edits.HOST_LIBRARIES, kind="Directory")
    edits.add_host_path(draft, "ddp-apertures", _APERTURES)
    edits.add_host_path(draft, "ddp-host-sys", "/sys")
    edits.add_host_path(draft, "ddp-host-proc-sys", "/proc/sys")
    edits.add_side_car(draft, _daemon(side_cars.tcpxo))
    trains = edits.container(draft, trainer)
    edits.mount(trains, "ddp-nvidia-libraries", edits.LIBRARIES)
    edits.mount(trains, "ddp-apertures", _APERTURES)
    edits.set_variables(
        trains, NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY=_APERTURES, NCCL_LIB_DIR=edits.LIBRARIES
    )
    edits.source_script(trains, _SCRIPT)
    edits.find_libraries(trains, edits.LIBRARIES)
    return draft


def _daemon(image: str) -> Manifest:
    daemon: edits.Draft = {
        "name": DAEMON,
        "image": image,
        "command": ["/bin/sh", "-c"],
        "args": [f"chmod 755 {_ENTRYPOINT} && exec {_ENTRYPOINT} --num_hops=2"],
        "startupProbe": {
            "exec": {"command": ["cat", _HEALTHY]},
            "periodSeconds": _PROBE_SECONDS,
            "failureThreshold": _PROBES,
        },
    }
    edits.mount(daemon, "ddp-nvidia-libraries", edits.LIBRARIES)
    edits.mount(daemon, "ddp-host-sys", "/hostsysfs")
    edits.mount(daemon, "ddp-host-proc-sys", "/hostprocsysfs")
    edits.set_variables(daemon, HEALTH_CHECK_LOG_FILE=_HEALTHY)
    edits.find_libraries(daemon, edits.LIBRARIES)
    edits.allow(daemon, "NET_ADMIN", "NET_BIND_SERVICE")
    return daemon
