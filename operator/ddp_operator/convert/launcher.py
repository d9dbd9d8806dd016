"""torchrun's command line: what of it says where the group is, which is the operator's to say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.command import started
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

ELASTIC: Final = (
    "the group changes under this project's launcher alone, which starts the script anew each "
    "time: take torchrun out of the command and set spec.launcher: inject"
)


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
    found = started(argv)
    if not found.by_torchrun or found.in_shell:
        return None
    index = found.begin
    kept, taken = list(argv[:index]), {}
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
