"""Replaces the code of a running pod, between two generations of its ranks.

A client sends the archive into the pod, and then asks the operator to restart the processes with
it. So code changes only where the operator says so, while no rank of the pod runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddp_protocol.code_archive import MAX_PACKED_BYTES, SENT, CodeError, current, unpack

FOLDER = "DDP_CODE_DIR"
"""The folder with the pod's code, in a volume that the launcher can write to."""

_logger = logging.getLogger(__name__)


class PodCode:
    """The code of this pod."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder with the code."""
        self._root = root

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> PodCode | None:
        """Return the pod's code, and make the folder for newer code; None: no client sent any."""
        folder = env.get(FOLDER)
        if not folder:
            return None
        with suppress(OSError):  # without the folder, clients say that code cannot be replaced
            (Path(folder) / SENT).mkdir(exist_ok=True)
        return cls(Path(folder))

    @property
    def id(self) -> str:
        """The ID of the code that the pod has; empty: half of it is unpacked."""
        return current(self._root)

    def is_of(self, code_id: str) -> bool:
        """Return whether the pod has this code; an empty ID is of any code."""
        return code_id in ("", self.id)

    def use(self, code_id: str) -> None:
        """Replace the pod's code; no rank may run.

        Raises:
            OSError: this code was not sent to this pod, or cannot be unpacked.
        """
        if self.is_of(code_id):
            return
        try:
            with (self._root / SENT / Path(code_id).name).open("rb") as file:
                packed = file.read(MAX_PACKED_BYTES + 1)
            unpack(packed, code_id, self._root)
        except FileNotFoundError as error:
            raise OSError(f"code {code_id} was not sent to this pod: {error}") from error
        except (CodeError, OSError) as error:
            # Without an errno, because another pod may be able to unpack it.
            raise OSError(f"code {code_id} cannot be unpacked: {error}") from error
        _logger.info("the pod has new code: %s", code_id)
