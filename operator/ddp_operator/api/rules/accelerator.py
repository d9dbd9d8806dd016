"""Rules on accelerators: for GPU types in the table, the request must fit the machines."""

from collections.abc import Callable

from ddp_operator.api.constants import (
    ARCHITECTURE_LABEL,
    FLEX_START_SECONDS,
    GKE_ACCELERATOR_LABEL,
    GKE_PARTITION_LABEL,
    GKE_SHARING_LABEL,
)
from ddp_operator.api.gpus import GPUS, Gpu
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import (
    HAS_PLAIN_LIMIT,
    PLAIN_LIMIT,
    for_trainer,
    plain_limit,
    pod_spec,
)
from ddp_operator.api.spec import DDPJobSpec


def known(spec: DDPJobSpec) -> Gpu | None:
    """Return what the table has about the accelerator, or None if it is not in the table."""
    return spec.accelerator.gpu if spec.accelerator else None


def selected(spec: DDPJobSpec, label: str) -> str | None:
    """Return the value that the pods require of a node's label."""
    found: str | None = (pod_spec(spec).get("nodeSelector") or {}).get(label)
    return found


def _asked(spec: DDPJobSpec) -> int:
    """Return the GPUs of a pod, as far as both forms of a rule can see them."""
    count = spec.accelerator.count if spec.accelerator else 1
    return max(count, plain_limit(spec) or 0)


def _types(which: Callable[[Gpu], object]) -> str:
    return ", ".join(f"'{name}'" for name, gpu in GPUS.items() if which(gpu))


_SHORTEST, _LONGEST = FLEX_START_SECONDS
_LABELS = "self.template.spec.nodeSelector"
_NO_TYPE = "!has(self.accelerator) || !has(self.accelerator.type)"
_MOST = "{" + ", ".join(f"'{name}': {gpu.most}" for name, gpu in GPUS.items()) + "}"
_LARGEST = "; ".join(
    f"{' and '.join(gpu.machines)} ({name}) {gpu.most}" for name, gpu in GPUS.items()
)


def _selects(label: str, value: str = "") -> str:
    """CEL: whether a label is required, with this value if one is given."""
    same = f" && {_LABELS}['{label}'] == '{value}'" if value else ""
    return f"(has({_LABELS}) && '{label}' in {_LABELS}{same})"


ACCELERATOR_RULES = (
    Rule(
        "spec.accelerator: names no machines; set type, or a computeClass that chooses one",
        "has(self.type) || has(self.computeClass)",
        lambda spec: (
            spec.accelerator is None
            or spec.accelerator.type is not None
            or spec.accelerator.compute_class is not None
        ),
        on="accelerator",
    ),
    Rule(
        "spec.accelerator.computeClass: chooses the machines and how they are bought; remove type, "
        "provisioning and reservation, or remove computeClass",
        "!has(self.computeClass) || !has(self.type) && self.provisioning == 'standard'"
        " && !has(self.reservation)",
        lambda spec: (
            (a := spec.accelerator) is None
            or a.compute_class is None
            or (a.type is None and a.provisioning == "standard" and a.reservation is None)
        ),
        on="accelerator",
    ),
    Rule(
        "spec.accelerator.reservation: needs provisioning: reservation, and the other way round; "
        "set both or neither",
        "has(self.computeClass) || has(self.reservation) == (self.provisioning == 'reservation')",
        lambda spec: (
            (a := spec.accelerator) is None
            or a.compute_class is not None
            or (a.reservation is not None) is (a.provisioning == "reservation")
        ),
        on="accelerator",
    ),
    Rule(
        "spec.accelerator.reservation.subBlocks: needs the block that it is in; set blocks, too",
        "!has(self.reservation) || !has(self.reservation.subBlocks)"
        " || has(self.reservation.blocks)",
        lambda spec: (
            (a := spec.accelerator) is None
            or a.reservation is None
            or a.reservation.sub_blocks is None
            or a.reservation.blocks is not None
        ),
        on="accelerator",
    ),
    Rule(
        "spec.accelerator.provisioning: queued needs a Kueue queue with an admission check that "
        "asks GKE for nodes; set spec.scheduling.queueName without gang: kai, or choose flex-start",
        "!has(self.accelerator) || self.accelerator.provisioning != 'queued'"
        " || has(self.scheduling) && has(self.scheduling.queueName)"
        " && self.scheduling.gang != 'kai'",
        lambda spec: (
            spec.accelerator is None
            or spec.accelerator.provisioning != "queued"
            or spec.kueue_queue is not None
        ),
    ),
    Rule(
        "spec.accelerator.maxRunSeconds: flex-start and queued nodes run for "
        f"{_SHORTEST} to {_LONGEST} seconds; use a number in this range, or remove it for the most",
        "!has(self.maxRunSeconds) || !(self.provisioning in ['flex-start', 'queued'])"
        f" || self.maxRunSeconds >= {_SHORTEST} && self.maxRunSeconds <= {_LONGEST}",
        lambda spec: (
            (a := spec.accelerator) is None
            or a.max_run_seconds is None
            or a.provisioning not in ("flex-start", "queued")
            or _SHORTEST <= a.max_run_seconds <= _LONGEST
        ),
        on="accelerator",
    ),
    Rule(
        f"spec.template.spec.nodeSelector: remove {GKE_ACCELERATOR_LABEL}; "
        "spec.accelerator.type sets it",
        f"{_NO_TYPE} || !{_selects(GKE_ACCELERATOR_LABEL)}"
        f" || {_LABELS}['{GKE_ACCELERATOR_LABEL}'] == self.accelerator.type",
        lambda spec: (
            (a := spec.accelerator) is None
            or a.type is None
            or selected(spec, GKE_ACCELERATOR_LABEL) in (None, a.type)
        ),
    ),
    Rule(
        "spec.accelerator.count: no machine of spec.accelerator.type has so many GPUs; request "
        f"fewer, in more pods. The largest: {_LARGEST}",
        f"{_NO_TYPE} || !(self.accelerator.type in {_MOST})"
        f" || {_selects(GKE_PARTITION_LABEL)}"
        f" || self.accelerator.count <= {_MOST}[self.accelerator.type] && "
        + for_trainer(
            f"!{HAS_PLAIN_LIMIT} || int({PLAIN_LIMIT}) <= {_MOST}[self.accelerator.type]"
        ),
        lambda spec: (
            (gpu := known(spec)) is None
            or selected(spec, GKE_PARTITION_LABEL) is not None
            or _asked(spec) <= gpu.most
        ),
    ),
    Rule(
        f"spec.accelerator: GPUs of its type cannot be divided; remove {GKE_PARTITION_LABEL}",
        f"{_NO_TYPE} || !(self.accelerator.type in"
        f" [{_types(lambda gpu: gpu.partitions == 1)}]) || !{_selects(GKE_PARTITION_LABEL)}",
        lambda spec: (
            (gpu := known(spec)) is None
            or gpu.partitions > 1
            or selected(spec, GKE_PARTITION_LABEL) is None
        ),
    ),
    Rule(
        f"spec.accelerator: on shared GPUs ({GKE_SHARING_LABEL}) a pod has one GPU and one "
        "process; set count and nprocPerNode to 1, or remove the label",
        f"!has(self.accelerator) || !{_selects(GKE_SHARING_LABEL)} || self.accelerator.count == 1"
        " && (type(self.nprocPerNode) != int || int(self.nprocPerNode) == 1) && "
        + for_trainer(f"!{HAS_PLAIN_LIMIT} || int({PLAIN_LIMIT}) <= 1"),
        lambda spec: (
            spec.accelerator is None
            or selected(spec, GKE_SHARING_LABEL) is None
            or (_asked(spec) == 1 and spec.nproc_per_node in ("auto", 1))
        ),
    ),
    Rule(
        f"spec.accelerator: the machines of its type have another processor than the required one "
        f"({ARCHITECTURE_LABEL}); remove the label, and use an image for their processor",
        f"{_NO_TYPE} || !(self.accelerator.type in {_MOST})"
        f" || !(self.accelerator.type in [{_types(lambda gpu: gpu.arm64)}]"
        f" ? {_selects(ARCHITECTURE_LABEL, 'amd64')} : {_selects(ARCHITECTURE_LABEL, 'arm64')})",
        lambda spec: (
            (gpu := known(spec)) is None
            or selected(spec, ARCHITECTURE_LABEL) != ("amd64" if gpu.arm64 else "arm64")
        ),
    ),
)
