"""Convert a `torchrun …` command line, as it is typed on each node."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from ddp_operator.api.constants import MAX_NAME_LENGTH, MAX_REPLICAS

from ddp_client.convert import job
from ddp_client.convert.launcher import ELASTIC, PLACE_FLAGS, count, launch
from ddp_client.convert.notes import ConversionError, Notes
from ddp_client.convert.pods import pods
from ddp_client.convert.references import Origin

DEFAULT_IMAGE: Final = "pytorch/pytorch"
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NOTHING_LOST: Final = frozenset({"nnodes", "nproc-per-node", "master-port", "max-restarts"})


def convert(argv: Sequence[str], notes: Notes, *, image: str | None) -> dict[str, Any]:
    """Convert a command line; variable assignments may precede it."""
    env, begin = [], 0
    for text in argv[1:] if argv[:1] == ["env"] else argv:
        match = _ASSIGNMENT.fullmatch(text)
        if match is None:
            break
        env.append({"name": match[1], "value": match[2]})
    begin = len(env) + (argv[:1] == ["env"])
    torchrun = launch(argv[begin:], take=PLACE_FLAGS | {"max-restarts"})
    if torchrun is None:
        raise ConversionError(
            "the command line: must begin with torchrun or python -m torch.distributed.run; write "
            "it as on one node"
        )
    taken = torchrun.taken
    for flag in [flag for flag in taken if flag not in _NOTHING_LOST]:
        notes.dropped(f"--{flag}", "the operator sets the rendezvous with environment variables")
    result: dict[str, Any] = _nodes(taken.get("nnodes", "1"), notes)
    processes = _processes(taken.get("nproc-per-node", "1"), notes)
    if processes != "auto":
        result["nprocPerNode"] = processes
    if port := taken.get("master-port"):
        result["masterPort"] = _number(port, "--master-port")
    if restarts := taken.get("max-restarts"):
        limit = _number(restarts, "--max-restarts")
        result["restart"] = job.restarts(limit, "--max-restarts", notes)
        notes.changed("--max-restarts", "all pods restart, and progress resets the count")
    if image is None:
        notes.changed("the image", f"set to {DEFAULT_IMAGE}; use --image, or change it")
    notes.changed(torchrun.script, "must be in the image, or on a volume of spec.template")
    container: dict[str, Any] = {"name": "trainer", "image": image or DEFAULT_IMAGE}
    container["command"] = list(torchrun.command)
    container |= {"env": env} if env else {}
    template = {"spec": {"containers": [container]}}
    one = pods(template, "the command line", notes, trainer=None, origin=Origin())
    result["template"] = one.template
    return job.checked(job.Metadata({"name": _name(torchrun.script)}, None, {}, {}), result, notes)


def _nodes(text: str, notes: Notes) -> dict[str, Any]:
    least, _, most = text.partition(":")
    nodes = _number(most or least, "--nnodes")
    if not 1 <= nodes <= MAX_REPLICAS:
        raise ConversionError(f"--nnodes: {nodes} pods; a DDPJob has 1 to {MAX_REPLICAS}")
    if not most or most == least:
        return {"replicas": nodes}
    notes.changed("--nnodes", f"{nodes} pods, at least {least} (spec.elastic); {ELASTIC}")
    return {"replicas": nodes, "elastic": {"minReplicas": _number(least, "--nnodes")}}


def _processes(text: str, notes: Notes) -> int | str:
    if text not in ("auto", "gpu", "cpu"):
        number = _number(text, "--nproc-per-node")
        if number > 1:
            notes.changed(
                "--nproc-per-node",
                f"the pods have no GPUs yet: for GPU training set spec.accelerator (type, count: "
                f"{number}), or the container's limit nvidia.com/gpu",
            )
        return number
    notes.changed(
        "--nproc-per-node",
        f"{text} means one process per GPU: set spec.accelerator (type, count), or "
        "spec.nprocPerNode for processes without GPUs",
    )
    return "auto"


def _number(text: str, flag: str) -> int:
    if (number := count(text)) is None:
        raise ConversionError(f"{flag}: {text} is not a number; correct it")
    return number


def _name(script: str) -> str:
    stem = PurePosixPath(script).stem.lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem)[:MAX_NAME_LENGTH].strip("-")
    return name if name[:1].isalpha() else f"job-{name}"[:MAX_NAME_LENGTH].strip("-")
