"""Remove the flags from torchrun's command line that the operator sets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.command import started
from ddp_operator.api.launch_options import options

from ddp_client.convert.notes import ConversionError

PLACE_FLAGS: Final = frozenset(
    {
        *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "standalone"),
        *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    }
)
"""Flags that the operator sets with environment variables such as PET_NNODES."""

_OF_PODS: Final = {
    "--nnodes": (
        re.compile(r"(--nnodes[= ] *[\"']?)\$(?:WORLD_SIZE\b|\{WORLD_SIZE\})"),
        "PET_NNODES",
    ),
    "--node_rank": (re.compile(r"(--node[_-]rank[= ] *[\"']?)\$(?:RANK\b|\{RANK\})"), "NODE_RANK"),
}
"""torchrun's flags with variables that count pods in a PyTorchJob, and those that do here."""

ELASTIC: Final = (
    "only this project's launcher can change the group's size, by restarting the script: remove "
    "torchrun from the command and set spec.launcher: inject"
)


def count(text: str) -> int | None:
    """Return a text as a number; None if it is none, or a very large one."""
    return int(text) if text.isdecimal() and len(text) < 7 else None


@dataclass(frozen=True)
class Launch:
    """A parsed torchrun command line."""

    command: tuple[str, ...]
    """The command without the flags in `taken`."""
    taken: Mapping[str, str]
    """Removed flags without dashes, with their values; empty for a switch."""
    script: str
    """The script that it runs."""


def launch(argv: Sequence[str], *, take: frozenset[str] = PLACE_FLAGS) -> Launch | None:
    """Remove flags from torchrun's own flags; None if the command line is not torchrun's.

    Raises:
        ConversionError: a flag is unknown, so it is unclear whether it has a value.
    """
    program = started(argv)
    if not program.by_torchrun or program.in_shell:
        return None
    own = options(program)
    if own.unread:
        raise ConversionError(
            f"{own.unread}: unknown torchrun flag, or missing value; write it as --flag=value"
        )
    rest = program.words[own.end :]
    if not rest[rest[:1] == ("--",) :]:
        raise ConversionError("torchrun has no script to run; name the script after its flags")
    kept = [word for one in own.all if one.name not in take for word in one.words]
    return Launch(
        command=(*program.words[: program.begin], *kept, *rest),
        taken={one.name: one.value for one in own.all if one.name in take},
        script=rest[rest[0] == "--"],
    )


def by_pod(line: str) -> tuple[str, Sequence[str]]:
    """Replace variables of a shell line by which torchrun counts pods; return it, and the changes.

    In a PyTorchJob, RANK and WORLD_SIZE may count pods. Here they count processes.
    """
    changes = []
    for flag, (pattern, variable) in _OF_PODS.items():
        line, often = pattern.subn(rf"\1${{{variable}}}", line)
        changes += [f"{flag} is ${variable} now"] * bool(often)
    return line, changes
