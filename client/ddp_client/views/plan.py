"""The summary that `kubectl ddp run` prints before it creates a job."""

import shlex
from collections.abc import Iterator
from typing import Final

from ddp_operator.api.values.text import clean, counted

from ddp_client.pod_security import PodSecurity
from ddp_client.submit import JobRequest, ranks_per_pod
from ddp_client.submit.code import pip_cache
from ddp_client.submit.command import pod_command
from ddp_client.submit.request import size_limits
from ddp_client.text import facts, folded

_LONGEST: Final = 400


def plan(
    request: JobRequest, namespace: str, security: PodSecurity | None = None, *, width: int
) -> list[str]:
    """Return the request, the resources it needs, and what a failure may lose.

    `security`: the Pod Security that the namespace enforces; None if unknown.
    """
    pods, each = request.replicas, ranks_per_pod(request)
    what = f"{counted(pods, 'pod')} with {counted(each, 'process', 'processes')}"
    what += " each" if pods > 1 else ""
    pairs = [("image", clean(request.image)), ("command", _command(request))]
    if request.user is not None:
        pairs.append(("user", str(request.user)))
    elif security and security.level == "restricted":
        pairs.append(
            (
                "user",
                "the image's; Pod Security restricted in this namespace needs a numeric user that "
                "is not root: if the image has none, add --user 1000",
            )
        )
    if request.gpus:
        gpus = request.gpus
        kind = f"GPUs {gpus.type}" if gpus.type else gpus.resource
        what += f": {pods * gpus.count} {clean(kind)} in total"
        where = f"with label {gpus.label}={gpus.type}" if gpus.type else "any with such GPUs"
        spot = "; spot: may be preempted at any time" if request.spot else ""
        pairs.append(("nodes", clean(where) + spot))
    least, most = size_limits(request)
    if least < request.replicas:
        pairs.append(("least", f"continues with {counted(least, 'pod')} while others are missing"))
    if most > request.replicas:
        pairs.append(("most", f"grows up to {counted(most, 'pod')} when nodes are available"))
    if request.spares:
        pairs.append(("spares", f"{counted(request.spares, 'more pod')} to replace lost ones"))
    if request.queue:
        pairs.append(("queue", f"{clean(request.queue)}: starts when it has quota for all pods"))
    pairs += _sent(request)
    pairs += [("mount", f"{clean(mount.path)}") for mount in request.mounts]
    if request.checkpoint:
        pairs.append(("saves to", f"{clean(request.checkpoint.name)} ({request.checkpoint.field})"))
    else:
        where = "the pods' own disks: checkpoints are lost with the pods (use --checkpoint)"
        if most > 1 and pod_command(request):
            where = (
                "each pod's own disk: checkpoints are lost with the pod, and after a failure a "
                "script restarts in all pods without a checkpoint (use --checkpoint)"
            )
        pairs.append(("saves to", where))
    if memory := request.memory_checkpoint:
        copies = 1 if memory.copies is None else memory.copies
        what_for = f"{memory.size_limit} of each pod, {counted(copies, 'copy', 'copies')}"
        pairs.append(("in memory", f"{what_for} in other pods (ddp_trainer.memory)"))
    head = f"DDPJob {clean(request.name)} in namespace {clean(namespace)}: {what}"
    return [*folded(head, width), *facts(((f"  {label}", text) for label, text in pairs), width)]


def _sent(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield what travels to the pods."""
    if request.scripts:
        size = f"{request.scripts.size / 1024:.1f} KiB"
        names = ", ".join(clean(path, 80) for path in request.scripts.files)
        yield "scripts", f"{names}: {size} in a ConfigMap, no image is built"
    code = request.code
    if code and code.is_workdir:
        what = f"{code.code.id}: {counted(len(code.files), 'file')}"
        where = counted(code.code.parts, "ConfigMap")
        if code.is_stored and code.volume:
            where = f"{clean(code.volume.place, 80)}, sent by a pod of this image"
        size = f"{len(code.packed) / 1024:.1f} KiB in {where}"
        yield "code", f"{what}, {size}, no image is built"
    if code and code.requirements:
        cache = pip_cache(request.mounts)
        kept = f", cache in {clean(cache)}" if cache else ""
        yield "installs", f"{clean(code.requirements, 80)}, once in each pod before the start{kept}"


def _command(request: JobRequest) -> str:
    command = pod_command(request)
    return clean(shlex.join(command), _LONGEST) if command else "the image's own"
