"""Kubernetes' reasons, which the operator passes on and acts on.

It also passes on others that it may see, such as `OutOfcpu`.
"""

from typing import Final

from ddp_client.views.reasons.reason import CHECK_NODE, FORGIVEN, NOTHING, UNCHARGED, Reason

_RETRIED: Final = (
    "the kubelet tries again; after five minutes the pod is replaced, on another node if possible. "
    "If no pod of this spec has run, the job fails once a second node says the same"
)

_IMAGE: Final = Reason(
    "the container's image cannot be pulled",
    _RETRIED,
    "check the image's name and tag, and that the namespace has the registry's pull secret",
)
_CONTAINER: Final = Reason(
    "the container cannot be created or started",
    _RETRIED,
    "check the container's command and its mounts in spec.template",
)
_RUNTIME: Final = Reason(
    "the container was created but could not start, because of its command or its node",
    "if the command does not exist, the job fails; otherwise new pods start",
    "check the container's command and its mounts in spec.template",
)
_TAKEN: Final = Reason("the cluster took the pod away", UNCHARGED, NOTHING)
_MISFIT: Final = Reason("the pod no longer fits its node", UNCHARGED, NOTHING)
_REFUSED: Final = Reason("the kubelet refused the pod: its node is unfit", FORGIVEN, CHECK_NODE)

OF_CLUSTER: Final = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ImageInspectError": _IMAGE,
    "RegistryUnavailable": _IMAGE,
    "SignatureValidationFailed": _IMAGE._replace(
        remedy="sign the image, or have the registry's policy changed"
    ),
    "InvalidImageName": _IMAGE._replace(
        then="the job fails at once", remedy="correct the image's name in spec.template"
    ),
    "ErrImageNeverPull": _IMAGE._replace(
        remedy="load the image on the node, or let it be pulled (imagePullPolicy)"
    ),
    "CreateContainerConfigError": _CONTAINER._replace(
        then="the kubelet tries again; after five minutes the pod is replaced, or the job fails if "
        "an object does not exist and no pod of this spec has run",
        remedy="create the Secret, ConfigMap or key that the message names; if it mentions "
        "runAsNonRoot, set securityContext.runAsUser in spec.template.spec (kubectl ddp run --user)"
    ),
    "CreateContainerError": _CONTAINER,
    "RunContainerError": _CONTAINER._replace(
        then="the kubelet tries again; after five minutes new pods start, as after a node's failure"
    ),
    "StartError": _RUNTIME,
    "ContainerCannotRun": _RUNTIME,
    "CrashLoopBackOff": Reason(
        "a sidecar of the pod ends again and again",
        "the kubelet restarts it after increasing pauses",
        "read that sidecar's log; the trainer waits for it",
    ),
    "Unschedulable": Reason(
        "no node has room for the pod, or none fits it",
        "the scheduler tries again; a partly placed job releases its nodes after "
        "spec.schedulingTimeoutSeconds",
        "compare requests and node selectors with `kubectl get nodes` and `kubectl ddp gpus` "
        "(spec.accelerator.type selects GKE's nodes); a growing node pool takes some minutes",
    ),
    "SchedulingGated": Reason(
        "the pod's scheduling gates keep it from the scheduler",
        "it starts once they are removed",
        "have the pods admitted by their queue, or by the owner of their scheduling gates",
    ),
    "OOMKilled": Reason(
        "the container used more memory than it, or its node, has",
        "new pods start; a restart is charged if the container has a limit of its own",
        "give the container a larger memory limit, or train on smaller batches",
    ),
    "ContainerStatusUnknown": _TAKEN._replace(
        meaning="the kubelet found the container gone, for example after its node restarted"
    ),
    **dict.fromkeys(
        ("Evicted", "Preempting", "Preempted", "Terminated", "Shutdown"), _TAKEN
    ),
    **dict.fromkeys(
        ("NodeShutdown", "NodeLost"), _TAKEN._replace(meaning="the pod's node left or failed")
    ),
    **dict.fromkeys(
        ("NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration"), _MISFIT
    ),
    **dict.fromkeys(
        ("UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError",
         "InvalidNodeInfo", "UnexpectedPredicateFailureType"),
        _REFUSED,
    ),
}  # fmt: skip
"""Reasons that the kubelet, the scheduler and the API server give, and the operator passes on."""
