"""Explains last words of a rank by what only its pod knows: its variables and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddp_protocol.error_texts import AT_LOCALHOST

from ddp_trainer.launcher.port_conflicts import who_has_port

_AT_LOCALHOST: Final = re.compile(AT_LOCALHOST)
_NO_METADATA: Final = re.compile(r"No such file or directory: '([^']{1,1024})/\.metadata'")
_METADATA: Final = ".metadata"
_MOST_FOLDERS: Final = 1000


def remark(words: str, *, own_port: int | None, environment: Mapping[str, str]) -> str:
    """Return what the pod knows about a rank's last output; empty if nothing.

    Args:
        words: the output.
        own_port: the port on which this launcher listens.
        environment: the variables that the pod received.
    """
    found = (
        who_has_port(words, own=own_port),
        waited_at_localhost(words, environment.get("MASTER_ADDR", "")),
        incomplete_checkpoint(words),
    )
    return "; ".join(filter(None, found))


def waited_at_localhost(words: str, master_addr: str) -> str:
    """Return that the script replaced the address of rank 0 by its own pod's; empty if not.

    `words`: the rank's last output. `master_addr`: the address that its pod received.
    """
    found = _AT_LOCALHOST.search(words)
    if found is None or master_addr in ("", found[1]):
        return ""
    return (
        f"it waited at {found[1]} port {found[2]}, its own pod, but rank 0 is at {master_addr}; "
        "remove the line of the script that sets MASTER_ADDR"
    )


def incomplete_checkpoint(words: str) -> str:
    """Return which checkpoint of torch.distributed.checkpoint is incomplete, and the newest
    complete one beside it; empty if the words name none.
    """
    found = _NO_METADATA.search(words)
    if found is None:
        return ""
    folder = Path(found[1])
    times = {}
    for other in _folders(folder.parent):
        with suppress(OSError):
            times[other] = (other / _METADATA).stat().st_mtime
    newest = max(times, key=lambda other: times[other], default=None)
    complete = (
        f"load {newest}, the newest complete one beside it" if newest else "none beside it is"
    )
    state = "is incomplete" if folder.is_dir() else "does not exist"
    return f"checkpoint {folder} {state}: no {_METADATA}, which is written last; {complete}"


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(parent) as entries:
        for entry, _ in zip(entries, range(_MOST_FOLDERS), strict=False):
            if entry.is_dir():
                yield parent / entry.name
