"""Reads a directory with the dumps of a job's ranks."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_operator.views.traces import MAX_BYTES, Dump, DumpError, read_dump

_RANK: Final = re.compile(r"(?:.*\D)?(\d{1,6})(?:\.(?:json|pickle|pkl))?")
"""torch ends the name with the rank: `nccl_trace_rank_12`, `comm_lib_trace_rank_12`."""
_MOST_FILES: Final = 4096
_SECONDS: Final = 300.0


class TracesError(Exception):
    """The directory cannot be used; the message names it and the remedy."""


@dataclass(frozen=True)
class Traces:
    """The dumps of a directory."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    """By rank."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """The reasons, by name of the file."""


def read_traces(directory: Path) -> Traces:
    """Read the dumps of a directory: the files with a name that ends with a rank.

    Raises:
        TracesError: there is none, or two of one rank.
    """
    until = time.monotonic() + _SECONDS
    found = Traces()
    for rank, file in sorted(_files(directory).items()):
        if time.monotonic() > until:
            found.unreadable[file.name] = f"not read within {_SECONDS:g} s: give fewer files"
            continue
        try:
            with file.open("rb") as stream:
                found.dumps[rank] = read_dump(stream.read(MAX_BYTES + 1))
        except DumpError as error:
            found.unreadable[file.name] = str(error)
        except OSError as error:
            found.unreadable[file.name] = f"cannot be read: {error.strerror}"
    if not found.dumps:
        name, reason = next(iter(found.unreadable.items()))
        raise TracesError(
            f"{directory / name}: {reason}; give a directory with dumps of torch's flight recorder"
        )
    return found


def _files(directory: Path) -> dict[int, Path]:
    files: dict[int, Path] = {}
    try:
        for file in sorted(directory.iterdir()):
            match = _RANK.fullmatch(file.name)
            # A pipe or a device could block or never end.
            if not match or not file.is_file():
                continue
            rank = int(match[1])
            if rank in files:
                both = f"{files[rank].name} and {file.name}"
                raise TracesError(f"{directory}: {both} are both of rank {rank}; remove one")
            files[rank] = file
    except OSError as error:
        raise TracesError(
            f"{directory}: {error.strerror}; give the directory with the dumps"
        ) from None
    if not files or len(files) > _MOST_FILES:
        said = f"more than {_MOST_FILES} dumps" if files else "no file name ends with a rank"
        raise TracesError(f"{directory}: {said}; give a directory with one dump for each rank")
    return files
