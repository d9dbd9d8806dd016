"""Checks of nodes, memory, the namespace, schedulers and storage."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddp_operator.api.constants import GKE_ACCELERATOR_LABEL
from ddp_operator.api.devices import is_accelerator
from ddp_operator.api.pod_security import PodSecurity
from ddp_operator.api.values.text import clean, counted

from ddp_client.views.doctor.facts import (
    Facts,
    Finding,
    Unknown,
    count,
    first_few,
    not_known,
    path,
)

SCHEDULERS: Final = {
    "Kueue": "scheduling.queueName",
    "coscheduling": "scheduling.gang: coscheduling",
    "Volcano": "scheduling.gang: volcano",
    "Kubernetes' own gangs": "scheduling.gang: native",
}
"""Schedulers that place pods together, and the field that selects each."""


def gpus(facts: Facts) -> Iterator[Finding]:
    """Check that nodes are ready and offer their GPUs."""
    if isinstance(facts.nodes, Unknown):
        yield not_known("GPUs", facts.nodes)
        return
    total, with_gpus = 0, 0
    without: list[str] = []
    unready: list[str] = []
    for node in facts.nodes:
        name = clean(path(node, "metadata", "name"), 253)
        allocatable = path(node, "status", "allocatable") or {}
        gpus = sum(count(value) for key, value in allocatable.items() if is_accelerator(key))
        total, with_gpus = total + gpus, with_gpus + bool(gpus)
        labels = path(node, "metadata", "labels") or {}
        if not gpus and (GKE_ACCELERATOR_LABEL in labels or "nvidia.com/gpu.present" in labels):
            without.append(name)
        if not _is_ready(node):
            unready.append(name)
    of = f"of {counted(len(facts.nodes), 'node')}"
    if unready:
        said = f"{len(unready)} {of} are not ready: {first_few(unready)}"
        yield Finding("warn", "nodes", said, "run kubectl describe node to see why")
    if without:
        yield Finding(
            "fail",
            "GPUs",
            f"{counted(len(without), 'node')} with GPUs offer none: {first_few(without)}",
            "install the GPU driver and NVIDIA's device plugin, and read its pods' logs",
        )
    if total:
        yield Finding("ok", "GPUs", f"{with_gpus} {of} offer {counted(total, 'GPU or slice')}")
    elif not without:
        said = f"none {of} offers one now; jobs without spec.accelerator train on CPUs"
        yield Finding(
            "warn", "GPUs", said, "no action is needed if a node pool scales up from zero"
        )


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = path(node, "status", "conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def shared_memory(facts: Facts) -> Finding:
    """Check what limits /dev/shm."""
    subject = "shared memory"
    if isinstance(facts.limits, Unknown):
        return not_known(subject, facts.limits)
    defaults = [
        clean(limit["default"]["memory"], 32)
        for each in facts.limits
        for limit in path(each, "spec", "limits") or ()
        if limit.get("type") == "Container" and (limit.get("default") or {}).get("memory")
    ]
    if not defaults:
        said = "pods get /dev/shm in memory, up to their memory limit or their node's memory"
        return Finding("ok", subject, said)
    return Finding(
        "warn",
        subject,
        f"containers without a memory limit get {defaults[0]} here (LimitRange), and /dev/shm "
        "counts towards it: DataLoader workers and NCCL may need more",
        "set resources.limits.memory in spec.template",
    )


_ADMITTED: Final = {
    "privileged": "any template is admitted",
    "baseline": "templates must not use host paths, host namespaces or privileges; "
    "spec.accelerator.network needs those",
    "restricted": "spec.template.spec needs securityContext.runAsNonRoot: true and "
    "securityContext.seccompProfile.type: RuntimeDefault, each container "
    "securityContext.allowPrivilegeEscalation: false and securityContext.capabilities.drop: [ALL]; "
    "kubectl ddp run writes them",
}
"""Effect of each level on jobs."""


def pod_security(facts: Facts) -> Finding:
    """Report the Pod Security level that the namespace enforces."""
    subject = "Pod Security"
    if isinstance(facts.labels, Unknown):
        return not_known(subject, facts.labels)
    where = f"namespace {clean(facts.namespace, 63)}"
    found = PodSecurity.of_labels(facts.labels)
    if found is None:
        said = f"{where} has no label for it: the cluster's default applies, usually privileged"
        return Finding("ok", subject, said)
    version = clean(found.version, 63)
    said = f"{where} enforces {found.level} ({version}): {_ADMITTED[found.level]}"
    return Finding("ok", subject, said)


def schedulers(facts: Facts) -> Iterator[Finding]:
    """Report the schedulers for gangs and queues."""
    there = [name for name in SCHEDULERS if facts.schedulers.get(name) is True]
    unknown = [told for told in facts.schedulers.values() if isinstance(told, Unknown)]
    if there:
        said = "; ".join(f"{name} ({SCHEDULERS[name]})" for name in there)
        yield Finding("ok", "schedulers", f"jobs can ask for {said}")
    elif unknown:
        yield not_known("schedulers", unknown[0])
    else:
        yield Finding(
            "ok",
            "schedulers",
            "none for queues or gangs: pods are scheduled one by one, and a gang that does not fit "
            "releases its nodes (schedulingTimeoutSeconds)",
        )
    if "Kueue" in there:
        queues = facts.queues
        where = f"namespace {clean(facts.namespace, 63)}"
        if isinstance(queues, Unknown):
            yield not_known("queues", queues)
        elif queues:
            yield Finding(
                "ok", "queues", f"{where} has {first_few([clean(q, 253) for q in queues])}"
            )
        else:
            said = f"Kueue has no LocalQueue in {where}: a job with a queueName waits forever"
            yield Finding("warn", "queues", said, "ask an administrator to create one")


def storage(facts: Facts) -> Finding:
    """Check that claims for checkpoints get a volume."""
    subject = "storage"
    if isinstance(facts.storage, Unknown):
        return not_known(subject, facts.storage)
    names = [clean(path(each, "metadata", "name"), 253) for each in facts.storage]
    default = [
        name
        for name, each in zip(names, facts.storage, strict=True)
        if (path(each, "metadata", "annotations") or {}).get(
            "storageclass.kubernetes.io/is-default-class"
        )
        == "true"
    ]
    if default:
        return Finding("ok", subject, f"claims get {default[0]} by default")
    said = f"there is no default class, only {first_few(names)}" if names else "there is no class"
    return Finding(
        "warn",
        subject,
        f"{said}: a claim for checkpoints without storageClassName stays pending",
        "set storageClassName in the claim, or keep checkpoints in a bucket or on NFS",
    )
