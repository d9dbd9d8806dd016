"""Node selector, tolerations and GPU request for `spec.accelerator`."""

from typing import Any

from ddp_operator.api import constants
from ddp_operator.api.devices import accelerators
from ddp_operator.api.spec.accelerator import Accelerator, Reservation

_PROVISIONING = {"spot": constants.GKE_SPOT_LABEL, "flex-start": constants.GKE_FLEX_START_LABEL}


def add_accelerator(
    spec: dict[str, Any], trainer: dict[str, Any], accelerator: Accelerator
) -> None:
    """Select nodes with this accelerator, and request its GPUs unless the trainer does."""
    # Tolerated taints; the nodes have labels of the same names.
    special: dict[str, str] = {}
    if accelerator.gpu and accelerator.gpu.arm64:
        special[constants.ARCHITECTURE_LABEL] = "arm64"
    if accelerator.compute_class:
        special[constants.GKE_COMPUTE_CLASS_LABEL] = accelerator.compute_class
    if label := _PROVISIONING.get(accelerator.provisioning):
        special[label] = "true"
    selector = {constants.GKE_ACCELERATOR_LABEL: accelerator.type} if accelerator.type else {}
    selector |= special
    if accelerator.provisioning == "queued":
        # Kueue selects the provisioned nodes when it admits the pods.
        special[constants.GKE_QUEUED_LABEL] = "true"
    elif accelerator.max_run_seconds:
        selector[constants.GKE_MAX_RUN_LABEL] = str(accelerator.max_run_seconds)
    if accelerator.provisioning == "spot":
        # GKE's page names the taint gke-spot; Google's Cluster Toolkit tolerates this one.
        special[constants.GKE_PROVISIONING_LABEL] = "spot"
    if accelerator.reservation:
        selector |= _reserved(accelerator.reservation)
        # GKE taints nodes that it creates on demand for a reservation.
        special[f"{constants.GKE_RESERVATION_PREFIX}name"] = accelerator.reservation.name
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        # GKE adds this toleration only to pods that request the resource in the classic way.
        # Without it a pod stays pending.
        {"key": constants.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"},
        *(
            {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
            for key, value in special.items()
        ),
    ]
    resources = trainer.get("resources") or {}
    if not accelerators(trainer):
        limits = {**(resources.get("limits") or {}), constants.GPU_RESOURCE: accelerator.count}
        trainer["resources"] = {**resources, "limits": limits}


def _reserved(reservation: Reservation) -> dict[str, str]:
    asked = {
        "affinity": "specific",
        "name": reservation.name,
        "project": reservation.project,
        "blocks": reservation.blocks,
        "subblocks": reservation.sub_blocks,
    }
    return {
        constants.GKE_RESERVATION_PREFIX + what: value for what, value in asked.items() if value
    }
