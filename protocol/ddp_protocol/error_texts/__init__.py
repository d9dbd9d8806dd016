"""Known error texts of torch, NCCL, CUDA, storage, the kubelet and others: what each decides and
means, and what to do.

Operator, clients and trainer share this table, and docs/reference/errors.md is written from it. A
new text is one entry: put it above entries that also match it.

Patterns work with RE2 and with Python's engine, and never match across lines. Give an entry a class
other than `UNDECIDED` only if its text proves it: classes decide who is blamed and charged.

Source: torch 2.6 to 2.15 (torch/csrc/distributed/c10d, c10/cuda, torch/distributed/elastic), their
gloo, and NCCL 2.27 to 2.30 (src/init.cc, bootstrap.cc, misc, os, transport).
"""

from itertools import chain
from typing import Final

from ddp_protocol.error_texts.checkpoints import CHECKPOINTS
from ddp_protocol.error_texts.gpus import GPU_MEMORY, PROGRAM_ON_GPU
from ddp_protocol.error_texts.host import FILES, MEMORY
from ddp_protocol.error_texts.known import Class, Known
from ddp_protocol.error_texts.network import NETWORK, OTHER_RANKS
from ddp_protocol.error_texts.nodes import GPUS, NODES
from ddp_protocol.error_texts.pods import CONFIG_TEXTS, PODS, PULL_TEXTS
from ddp_protocol.error_texts.program import PROGRAM
from ddp_protocol.error_texts.servers import DOWNLOADS
from ddp_protocol.error_texts.training import DATA, DDP

__all__ = ["AT_LOCALHOST", "KNOWN", "PULLS", "TOPICS", "WITH_REASON", "Class", "Known", "any_of"]

AT_LOCALHOST: Final = r"trying to connect to \((localhost|127\.0\.0\.1|::1), (\d+)\)"
"""torch's words after the time-out of its store: address and port at which a rank waited for rank 0
in its own pod."""

PULLS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
"""Kubelet's reasons while an image cannot be pulled; they alternate."""
WITH_REASON: Final = {
    **dict.fromkeys(sorted(PULLS), PULL_TEXTS),
    "CreateContainerConfigError": CONFIG_TEXTS,
}
"""Texts that count only in messages with one of these reasons of the kubelet."""

TOPICS: Final = {
    "Broken GPUs": GPUS,
    "Broken nodes": NODES,
    "GPU memory": GPU_MEMORY,
    "CUDA and the GPU": PROGRAM_ON_GPU,
    "NCCL, gloo and the network": NETWORK,
    "Memory and processes": MEMORY,
    "Files and volumes": FILES,
    "torch.distributed and DDP": DDP,
    "Data loading": DATA,
    "Checkpoint files": CHECKPOINTS,
    "Downloads and other servers": DOWNLOADS,
    "Command, script and image": PROGRAM,
    "Other ranks": OTHER_RANKS,
    "Scheduling, volumes and eviction": PODS,
    "Image pulls": PULL_TEXTS,
    "Missing Secrets and ConfigMaps": CONFIG_TEXTS,
}
"""All texts, by topic. An own failure comes before a consequence."""

KNOWN: Final = tuple(
    known for texts in TOPICS.values() if texts not in WITH_REASON.values() for known in texts
)
"""Texts that count in any message."""


def any_of(*classes: Class) -> str:
    """Return a pattern that matches the texts of these classes."""
    known = chain.from_iterable(TOPICS.values())
    return "|".join(each.pattern for each in known if each.class_ in classes)
