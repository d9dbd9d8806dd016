"""Tells by words alone whether another rank is gone: without torch, as launchers need it."""

from __future__ import annotations

import re

from ddp_trainer.process_group import messages

_PEER = re.compile("|".join(messages.PEER))
_OWN = re.compile("|".join(messages.OWN))


def tells_of_lost_peer(words: str) -> bool:
    """Whether words of torch or NCCL say that another rank is gone, not that this one failed."""
    return bool(_PEER.search(words)) and not _OWN.search(words)
