"""The command of a job's pods: who starts the processes of each pod."""

from ddp_operator.api.command import Started, started

from ddp_client.submit.request import JobRequest, Launcher, ranks_per_pod, size_limits
from ddp_client.submit.validation import JobRequestError


def pod_command(request: JobRequest) -> list[str]:
    """Return the command that runs in each pod.

    Raises:
        JobRequestError: it would not start one process per GPU.
    """
    command = list(request.command)
    if request.scripts:
        first = next(iter(request.scripts.files))
        command = request.scripts.in_pods(command or ["python", first])
    found, launcher = started(command), request.launcher
    if launcher == "auto":
        launcher = _chosen(request, found)
    if launcher in ("none", "inject"):
        return command
    if launcher == "bundled":
        if found.launcher:
            raise JobRequestError(
                f"launcher bundled: {found.called} starts processes too; remove it from the "
                "command (python train.py)"
            )
        start = ["python", "-m", "ddp_trainer.launch"]
        return [*start, "--", *command] if command else start
    return command if found.by_torchrun else _under_torchrun(found)


def starts_once(request: JobRequest) -> bool:
    """Tell whether the command must start a pod's processes itself, which cannot be checked."""
    alone = request.launcher in ("auto", "none") and ranks_per_pod(request) > 1
    return alone and not started(pod_command(request)).launcher


def _chosen(request: JobRequest, found: Started) -> Launcher:
    """Choose the program that starts a pod's processes.

    Raises:
        JobRequestError: the command's own launcher does not read the number of processes.
    """
    several = ranks_per_pod(request) > 1
    if found.launcher and not found.by_torchrun and (several or size_limits(request)[1] > 1):
        raise JobRequestError(
            f"{found.called}: takes the number of processes and pods from its own flags, not from "
            "the job; write python train.py, which torchrun starts, or add --launcher none"
        )
    if several and found.words[:1] and found.words[0].endswith(".py"):
        raise JobRequestError(f"{found.words[0]}: write python before it, or add --launcher none")
    return "torchrun" if several and found.python is not None else "none"


def _under_torchrun(found: Started) -> list[str]:
    """Return the command under torchrun: `python -u -m torch.distributed.run train.py`.

    torchrun reads the number of processes and the rendezvous from the pods' environment.
    """
    words, python, begin = found.words, found.python, found.begin
    if python is None or found.launcher:
        raise JobRequestError(
            "launcher torchrun: the command must start Python, such as python train.py"
        )
    if found.in_shell:
        raise JobRequestError(
            "the shell command starts Python once: replace python with torchrun there, or give "
            "python train.py without a shell; --launcher none keeps the command"
        )
    if begin >= len(words) or words[begin] in ("-c", "-"):
        raise JobRequestError("launcher torchrun: the command must run a script or a module (-m)")
    before, rest = words[:begin], words[begin:]
    if python == begin:  # uv run SCRIPT names no python
        before = (*(word for word in before if word not in ("-s", "--script")), "python")
    if rest[0].startswith("-m") and rest[0] != "-m":  # torchrun reads -mtrain as several flags
        rest = ("-m", rest[0][2:], *rest[1:])
    elif rest[0] == "--module":
        rest = ("-m", *rest[1:])
    return [*before, "-m", "torch.distributed.run", *rest]
