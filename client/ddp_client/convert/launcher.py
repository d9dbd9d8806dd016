"""Parse torchrun's command line, and remove the flags that the operator sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_operator.api.command import started

from ddp_client.convert.notes import ConversionError

PLACE_FLAGS: Final = frozenset(
    {
        *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "standalone"),
        *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    }
)
"""Flags that the operator sets with environment variables such as PET_NNODES."""
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
    "only this project's launcher can change the group's size, by restarting the script: remove "
    "torchrun from the command and set spec.launcher: inject"
)


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
                    f"{flag}: unknown torchrun flag, or missing value; write it as --flag=value"
                )
            value, length = argv[index + 1], 2
        if name in take:
            taken[name] = value
        else:
            kept += argv[index : index + length]
        index += length
    rest = argv[index + 1 :] if argv[index : index + 1] == ["--"] else argv[index:]
    if not rest:
        raise ConversionError("torchrun has no script to run; name the script after its flags")
    return Launch((*kept, *argv[index:]), taken, rest[0])
