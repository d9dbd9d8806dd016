"""Rules on GPU networks: which machines have them, and what they need."""

from ddp_operator.api.gpus import GPUS, networks
from ddp_operator.api.rules.accelerator import known
from ddp_operator.api.rules.rule import Rule
from ddp_operator.api.rules.trainer import (
    HAS_PLAIN_LIMIT,
    PLAIN_LIMIT,
    for_trainer,
    plain_limit,
    wants_host_network,
)
from ddp_operator.api.spec import DDPJobSpec

_JOINED = {name: gpu for name, gpu in GPUS.items() if networks(gpu)}
"""GPU types of machines with a GPU network."""
_WITHOUT = "!has(self.accelerator) || self.accelerator.network == 'none'"
# Not a map of lists: the API server cannot bound the length of a list that comes out of a map.
_SERVES = " || ".join(
    f"self.type == '{name}' && self.network in {['auto', *networks(gpu)]}"
    for name, gpu in _JOINED.items()
)
_WHOLE = {name: gpu.most for name, gpu in _JOINED.items()}
_MOST = f"{_WHOLE}[self.accelerator.type]"


def _wanted(spec: DDPJobSpec) -> str:
    return spec.accelerator.network if spec.accelerator else "none"


def _serves(spec: DDPJobSpec) -> bool:
    if spec.accelerator is None or spec.accelerator.network == "none":
        return True
    gpu = known(spec)
    if gpu is None:
        return spec.accelerator.network != "auto"  # the user must know
    return bool(networks(gpu)) and spec.accelerator.network in ("auto", *networks(gpu))


def _is_whole(spec: DDPJobSpec) -> bool:
    gpu = known(spec)
    if spec.accelerator is None or gpu is None or not networks(gpu):
        return True
    return gpu.most in (spec.accelerator.count, plain_limit(spec))


NETWORK_RULES = (
    Rule(
        "spec.accelerator.network: machines of this type do not have this network, or the type is "
        "unknown; choose none, or one of "
        + ", ".join(f"{' or '.join(networks(gpu))} with {t}" for t, gpu in _JOINED.items()),
        f"self.network == 'none' || (has(self.type) && self.type in {list(GPUS)}"
        f" ? {_SERVES} : self.network != 'auto')",
        _serves,
        on="accelerator",
    ),
    Rule(
        "spec.accelerator.network: a GPU network needs whole machines; set "
        "spec.accelerator.count to all GPUs of one: "
        + ", ".join(f"{most} of {name}" for name, most in _WHOLE.items()),
        f"{_WITHOUT} || !has(self.accelerator.type) || !(self.accelerator.type in {_WHOLE})"
        f" || self.accelerator.count == {_MOST} || "
        + for_trainer(f"{HAS_PLAIN_LIMIT} && int({PLAIN_LIMIT}) == {_MOST}"),
        lambda spec: _wanted(spec) == "none" or _is_whole(spec),
    ),
    Rule(
        "spec.accelerator.network: a GPU network works with nccl only; remove spec.backend: gloo, "
        "or set the network to none",
        f"{_WITHOUT} || self.backend != 'gloo'",
        lambda spec: _wanted(spec) == "none" or spec.backend != "gloo",
    ),
    Rule(
        "spec.accelerator.network: a GPU network gives pods their own network cards; remove "
        "hostNetwork from spec.template.spec, or set the network to none",
        f"{_WITHOUT} || !has(self.template.spec.hostNetwork) || !self.template.spec.hostNetwork",
        lambda spec: _wanted(spec) == "none" or not wants_host_network(spec),
    ),
)
