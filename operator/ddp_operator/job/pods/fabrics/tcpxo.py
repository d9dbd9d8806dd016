"""GPUDirect-TCPXO (FasTrak): a3-megagpu-8g, eight network cards and a daemon that receives.

Based on gpudirect-tcpxo/nccl-test-latest.yaml and best-practice.md (native side car, startup probe,
environment script) of https://github.com/GoogleCloudPlatform/container-engine-accelerators at
992db812 (June 2026).
"""

from typing import Final

from ddp_operator.api.constants import ENV_NCCL_SCRIPT
from ddp_operator.job.pods.fabrics import edits

DAEMON: Final = "tcpxo-daemon"
_ENTRYPOINT: Final = "/fts/entrypoint_rxdm_container.sh"
_HEALTHY: Final = "/run/health-check"
"""The daemon writes this file when it is ready. Its path must not contain an underscore."""
_APERTURES: Final = "/dev/aperture_devices"
_NCCL: Final = {
    "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": _APERTURES,
    "NCCL_LIB_DIR": edits.LIBRARIES,
    ENV_NCCL_SCRIPT: f"{edits.LIBRARIES}/nccl-env-profile.sh",
}
_NETWORKS: Final = tuple((f"eth{n}", f"vpc{n}") for n in range(1, 9))
_DEVICES: Final = (*edits.GPU_DEVICES, "/dev/dmabuf_import_helper")
_PROBE_SECONDS: Final = 5
_PROBES: Final = 24
"""Two minutes: it usually takes half a minute, and a node where it never gets ready is bad."""


def tcpxo(draft: edits.Draft, trainer: str, image: str) -> None:
    """Give the pod TCPXO; `image` is the daemon's."""
    edits.give_interfaces(draft, _NETWORKS)
    edits.give_devices(draft, DAEMON, _DEVICES)
    edits.add_host_path(draft, "ddp-apertures", _APERTURES)
    edits.add_daemon(draft, trainer, _daemon(image))
    trains = edits.container(draft, trainer)
    edits.mount(trains, "ddp-apertures", _APERTURES)
    edits.set_variables(trains, **_NCCL)


def _daemon(image: str) -> edits.Draft:
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
    edits.set_variables(daemon, HEALTH_CHECK_LOG_FILE=_HEALTHY)
    edits.allow(daemon, "NET_ADMIN", "NET_BIND_SERVICE")
    return daemon
