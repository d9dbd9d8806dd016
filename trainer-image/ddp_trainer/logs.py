"""Log lines for people, the same from launcher and ranks."""

from __future__ import annotations

import logging
import sys


def log_to_stdout(speaker: str) -> None:
    """Log lines as `12:00:01 [rank 0] step 10/276 …`."""
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format=f"%(asctime)s [{speaker}] %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
