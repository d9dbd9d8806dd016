"""Checks of nodes, memory, the namespace, schedulers and storage."""

from collections.abc import Iterator
from typing import Final

from ddp_operator.api import kubernetes
from ddp_operator.api.constants import GKE_ACCELERATOR_LABEL
from ddp_operator.api.gpus import GPUS
from ddp_operator.api.values.text import clean, counted

from ddp_client.documents import nested
from ddp_client.pod_security import PodSecurity
from ddp_client.submit.gpus import offered
from ddp_client.views.doctor.facts import (
    Facts,
    Finding,
    Unknown,
    first_few,
    not_known,
)
from ddp_client.views.gpus import is_ready, stocks

NATIVE: Final = "Kubernetes' own gangs"
SCHEDULERS: Final = {
    "Kueue": "scheduling.queueName",
    "coscheduling": "scheduling.gang: coscheduling",
    "KAI": "scheduling.gang: kai",
    NATIVE: "scheduling.gang: native",
}
"""Schedulers that place pods together, and the field that selects each."""
_BETA_APIS: Final = "scheduling.k8s.io/v1beta1/podgroups,scheduling.k8s.io/v1beta1/workloads"


def gpus(facts: Facts) -> Iterator[Finding]:
    """Check that nodes are ready and offer their GPUs."""
    if isinstance(facts.nodes, Unknown):
        yield not_known("GPUs", facts.nodes)
        return
    without: list[str] = []
    unready: list[str] = []
    for node in facts.nodes:
        name = clean(nested(node, "metadata", "name"), 253)
        labels = nested(node, "metadata", "labels") or {}
        has_label = GKE_ACCELERATOR_LABEL in labels or "nvidia.com/gpu.present" in labels
        if has_label and not offered(node):
            without.append(name)
        if not is_ready(node):
            unready.append(name)
    of = f"of {counted(len(facts.nodes), 'node')}"
    if unready:
        text = f"{len(unready)} {of} are not ready: {first_few(unready)}"
        yield Finding("warn", "nodes", text, "run kubectl describe node to see why")
    if without:
        yield Finding(
            "fail",
            "GPUs",
            f"{counted(len(without), 'node')} with GPUs offer none: {first_few(without)}",
            "install the GPU driver and NVIDIA's device plugin, and read its pods' logs",
        )
    if offers := stocks(facts.nodes, facts.pods):
        with_gpus = sum(1 for node in facts.nodes if offered(node))
        total = sum(stock.total for stock in offers)
        text = f"{with_gpus} {of} offer {counted(total, 'GPU or slice', 'GPUs or slices')}"
        if facts.pods is not None:
            text += f", {sum(stock.free for stock in offers)} free"
        kinds = [stock.type or stock.resource for stock in offers]
        yield Finding("ok", "GPUs", f"{text}: {first_few(kinds)} (kubectl ddp gpus)")
    elif not without:
        text = f"none {of} offers one now; jobs that request no GPU train on CPUs"
        yield Finding(
            "warn", "GPUs", text, "no action is needed if a node pool scales up from zero"
        )


def nvlink_domains(facts: Facts) -> Iterator[Finding]:
    """Check that the cluster serves ComputeDomains if it has machines that share NVLink."""
    subject = "NVLink domains"
    nodes = () if isinstance(facts.nodes, Unknown) else facts.nodes
    labels = [nested(node, "metadata", "labels") or {} for node in nodes]
    existing = [each.get(GKE_ACCELERATOR_LABEL) for each in labels]
    types = [name for name, gpu in GPUS.items() if gpu.domain_nodes and name in existing]
    if not types:
        return
    if isinstance(facts.domains, Unknown):
        yield not_known(subject, facts.domains)
    elif facts.domains:
        text = (
            f"accelerator.network gives jobs one on {first_few(types)} (component compute-domains)"
        )
        yield Finding("ok", subject, text)
    else:
        text = f"{first_few(types)}: the server has no ComputeDomains, so accelerator.network waits"
        yield Finding("warn", subject, text, "install NVIDIA's DRA driver for GPUs")


def shared_memory(facts: Facts) -> Finding:
    """Check what limits /dev/shm."""
    subject = "shared memory"
    if isinstance(facts.limits, Unknown):
        return not_known(subject, facts.limits)
    defaults = [
        clean(limit["default"]["memory"], 32)
        for each in facts.limits
        for limit in nested(each, "spec", "limits") or ()
        if limit.get("type") == "Container" and (limit.get("default") or {}).get("memory")
    ]
    if not defaults:
        text = "pods get /dev/shm in memory, up to their memory limit or their node's memory"
        return Finding("ok", subject, text)
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
    security = PodSecurity.of_labels(facts.labels)
    if security is None:
        text = f"{where} has no label for it: the cluster's default applies, usually privileged"
        return Finding("ok", subject, text)
    version = clean(security.version, 63)
    text = f"{where} enforces {security.level} ({version}): {_ADMITTED[security.level]}"
    return Finding("ok", subject, text)


def schedulers(facts: Facts) -> Iterator[Finding]:
    """Report the schedulers for gangs and queues."""
    there = [name for name in SCHEDULERS if facts.schedulers.get(name) is True]
    unknown = [answer for answer in facts.schedulers.values() if isinstance(answer, Unknown)]
    if there:
        text = "; ".join(f"{name} ({SCHEDULERS[name]})" for name in there)
        yield Finding("ok", "schedulers", f"jobs can ask for {text}")
    elif unknown:
        yield not_known("schedulers", unknown[0])
    else:
        yield Finding(
            "ok",
            "schedulers",
            "none for queues or gangs: pods are scheduled one by one, and a gang that does not fit "
            "releases its nodes (schedulingTimeoutSeconds)",
        )
    if facts.schedulers.get(NATIVE) is False:
        yield from _native_gangs(facts)
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
            text = f"Kueue has no LocalQueue in {where}: a job with a queueName waits forever"
            yield Finding("warn", "queues", text, "ask an administrator to create one")


def _native_gangs(facts: Facts) -> Iterator[Finding]:
    """Tell why Kubernetes' own gangs are off in a release that has them."""
    known = {} if isinstance(facts.version, Unknown) else facts.version
    version = clean(known.get("gitVersion"), 64)
    if (kubernetes.release(version) or kubernetes.OLDEST) < kubernetes.NATIVE_GANGS:
        return
    remedy = (
        "to use it, turn on the feature gate GenericWorkload and the API scheduling.k8s.io/v1beta1"
    )
    if "-gke." in version:
        remedy = (
            "to use it, run gcloud container clusters update NAME "
            f"--enable-kubernetes-unstable-apis={_BETA_APIS} (if GKE offers them)"
        )
    text = "scheduling.gang: native is off: the server does not serve PodGroups (v1beta1)"
    yield Finding("ok", "native gangs", text, remedy)


def storage(facts: Facts) -> Finding:
    """Check that claims for checkpoints get a volume."""
    subject = "storage"
    if isinstance(facts.storage, Unknown):
        return not_known(subject, facts.storage)
    names = [clean(nested(each, "metadata", "name"), 253) for each in facts.storage]
    default = [
        name
        for name, each in zip(names, facts.storage, strict=True)
        if (nested(each, "metadata", "annotations") or {}).get(
            "storageclass.kubernetes.io/is-default-class"
        )
        == "true"
    ]
    if default:
        return Finding("ok", subject, f"claims get {default[0]} by default")
    text = f"there is no default class, only {first_few(names)}" if names else "there is no class"
    return Finding(
        "warn",
        subject,
        f"{text}: a claim for checkpoints without storageClassName stays pending",
        "set storageClassName in the claim, or keep checkpoints in a bucket or on NFS",
    )
