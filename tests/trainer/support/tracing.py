"""Traces which functions of the trainer run, and in which files they are."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import Any

import ddp_trainer

_OURS = str(Path(ddp_trainer.__file__).parent)


class Trace:
    """Files of the trainer that are entered, and calls there."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls = 0
        self.is_on = True

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call; for `sys.setprofile` and `threading.setprofile`."""
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(_OURS):
            self.files.add(frame.f_code.co_filename.removeprefix(_OURS))
            self.calls += 1
