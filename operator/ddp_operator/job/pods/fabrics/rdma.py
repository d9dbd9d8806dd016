"""GPUDirect-RDMA over RoCE, with Google's plugin gIB: a3-ultragpu-8g and a4-highgpu-8g.

Held against gpudirect-rdma/nccl-test.yaml and nccl-test-a4.yaml of
https://github.com/GoogleCloudPlatform/container-engine-accelerators at 992db812 (June 2026). There
the diagnostic image's entry script makes gIB's libraries known; here LD_LIBRARY_PATH does.
"""

from copy import deepcopy
from typing import Any, Final

from ddp_operator.job.pods.fabrics import edits
from ddp_operator.job.pods.fabrics.side_cars import SideCars
from ddp_operator.ports import Manifest

_NETWORKS: Final = tuple((f"eth{n + 2}", f"rdma-{n}") for n in range(8))
"""eth1 is the node's second ordinary card."""
_GIB: Final = "/usr/local/gib"


def rdma(pod: Manifest, trainer: str, side_cars: SideCars) -> dict[str, Any]:
    """Return the pod with RDMA by interfaces of its own."""
    del side_cars  # it has none
    draft: edits.Draft = deepcopy(dict(pod))
    edits.give_interfaces(draft, _NETWORKS)
    give_gib(draft, trainer)
    # GKE gives the cards' device files to a pod's first container, and to no other:
    # https://docs.cloud.google.com/ai-hypercomputer/docs/create/gke-ai-hypercompute-custom
    draft["spec"]["containers"].sort(key=lambda container: container.get("name") != trainer)
    return draft


def give_gib(draft: edits.Draft, trainer: str) -> None:
    """Give the trainer NVIDIA's and gIB's libraries, which an installer puts on the nodes."""
    edits.add_host_path(draft, "ddp-nvidia", "/home/kubernetes/bin/nvidia", kind="Directory")
    edits.add_host_path(draft, "ddp-gib", "/home/kubernetes/bin/gib", kind="Directory")
    trains = edits.container(draft, trainer)
    edits.mount(trains, "ddp-nvidia", "/usr/local/nvidia")
    edits.mount(trains, "ddp-gib", _GIB)
    edits.source_script(trains, f"{_GIB}/scripts/set_nccl_env.sh")
    edits.find_libraries(trains, f"{_GIB}/lib64", edits.LIBRARIES)
