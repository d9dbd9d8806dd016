"""torchrun's command line: what of it says where the group is, which is the operator's to say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from ddp_operator.convert.notes import ConversionError

PLACE_FLAGS: Final = frozenset(
    {
        *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "standalone"),
        *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    }
)
"""What the operator tells torchrun by variables, PET_NNODES and so on."""
_VALUES: Final = frozenset(
    {
        *("max-restarts", "monitor-interval", "start-method", "role", "log-dir", "r", "redirects"),
        *("t", "tee", "local-ranks-filter", "log-line-prefix-template", "logs-specs", "local-addr"),
        *("event-log-handler", "numa-binding", "signals-to-handle", "shutdown-timeout"),
        *("duplicate-stdout-filters", "duplicate-stderr-filters"),
    }
)
_SWITCHES: Final = frozenset(
    {*("standalone", "m", "module", "no-python", "run-path", "use-env", "virtual-local-rank")}
)
_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_IN_SCRIPT: Final = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")
_PROCESSES: Final = re.compile(r"--nproc[-_]per[-_]node[= ]+(\d{1,4})\b")


@dataclass(frozen=True)
class Launch:
    """A command line of torchrun's, taken apart."""

    command: tuple[str, ...]
    """The same without the flags that were taken."""
    taken: Mapping[str, str]
    """Flags without their dashes, and what they say; a switch says nothing."""
    script: str
    """What it runs."""


def launch(argv: Sequence[str], *, take: frozenset[str] = PLACE_FLAGS) -> Launch | None:
    """Take flags out of torchrun's own ones; None where the command line is not torchrun's.

    Raises:
        ConversionError: a flag that is not known, of which it cannot be told where it ends.
    """
    begin = _after_launcher(argv)
    if begin is None:
        return None
    kept, taken = list(argv[:begin]), {}
    index = begin
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "--":
        flag, has_value, value = argv[index].partition("=")
        name = flag.lstrip("-").replace("_", "-")
        length = 1
        if name not in _SWITCHES and not has_value:
            if name not in PLACE_FLAGS | _VALUES or index + 1 == len(argv):
                raise ConversionError(
                    f"{flag}: no flag of torchrun's that is known, or one without its value; write "
                    "it in full, as --flag=value"
                )
            value, length = argv[index + 1], 2
        if name in take:
            taken[name] = value
        else:
            kept += argv[index : index + length]
        index += length
    rest = argv[index + 1 :] if argv[index : index + 1] == ["--"] else argv[index:]
    if not rest:
        raise ConversionError("torchrun is given nothing to run; name the script behind its flags")
    return Launch((*kept, *argv[index:]), taken, rest[0])


def in_script(texts: Sequence[str]) -> bool:
    """Whether torchrun seems to be started somewhere in a command, such as by a shell."""
    return any(_IN_SCRIPT.search(text) for text in texts)


def processes_in_script(texts: Sequence[str]) -> int | None:
    """How many processes a shell's line has torchrun start, where it says so."""
    found = [_PROCESSES.search(text) for text in texts]
    return next((int(match[1]) for match in found if match), None)


def _after_launcher(argv: Sequence[str]) -> int | None:
    """Return where torchrun's flags begin."""
    if not argv:
        return None
    program = PurePosixPath(argv[0]).name
    if program == "torchrun":
        return 1
    begin = 1
    while begin < len(argv) and argv[begin] in ("-u", "-B", "-O"):
        begin += 1
    is_module = program.startswith("python") and len(argv) > begin + 1 and argv[begin] == "-m"
    return begin + 2 if is_module and argv[begin + 1] in _MODULES else None
