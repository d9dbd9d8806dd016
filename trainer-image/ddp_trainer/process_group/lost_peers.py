"""Recognises the loss of a peer by an error's text; without torch, which launchers do not load."""

from __future__ import annotations

import re

from ddp_trainer.process_group import messages

_PEER = re.compile("|".join(messages.PEER))
_OWN = re.compile("|".join(messages.OWN))


def tells_of_lost_peer(words: str) -> bool:
    """Return whether words of torch or NCCL mean that another rank is gone, not an own error."""
    return bool(_PEER.search(words)) and not _OWN.search(words)
