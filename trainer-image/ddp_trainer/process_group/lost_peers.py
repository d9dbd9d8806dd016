"""Recognises the loss of a peer by an error's text; without torch, which launchers do not load."""

from __future__ import annotations

import re

from ddp_protocol.error_texts import Class, any_of

_PEER = re.compile(any_of(Class.GLOO, Class.PEER))
_OWN = re.compile(any_of(Class.CUDA, Class.OWN))


def tells_of_lost_peer(words: str) -> bool:
    """Return whether words of torch or NCCL mean that another rank is gone, not an own error."""
    return bool(_PEER.search(words)) and not _OWN.search(words)
