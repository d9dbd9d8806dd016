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
from ddp_operator.api.spec.accelerator import Accelerator

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
_DOMAINS = {name: gpu.domain_nodes for name, gpu in GPUS.items() if gpu.domain_nodes}
"""Nodes of one NVLink domain, by GPU type."""
_PODS = (
    "(has(self.elastic) && has(self.elastic.maxReplicas) ? self.elastic.maxReplicas"
    " : self.replicas) + self.spares"
)


def _wanted(spec: DDPJobSpec) -> str:
    return spec.accelerator.network if spec.accelerator else "none"


def _serves(spec: DDPJobSpec) -> bool:
    if spec.accelerator is None or spec.accelerator.network == "none":
        return True
    gpu = known(spec)
    if gpu is None:
        return spec.accelerator.network != "auto"  # the user must know
    return bool(networks(gpu)) and spec.accelerator.network in ("auto", *networks(gpu))


def _fits_domain(spec: DDPJobSpec) -> bool:
    nodes = spec.accelerator.domain_nodes if spec.accelerator else 0
    return not nodes or spec.max_size + spec.spares <= nodes


def _domain_type(accelerator: str) -> str:
    """CEL: the GPU type if pods need an NVLink domain, otherwise an empty text."""
    type_ = f"{accelerator}.type"
    asks = f"has({accelerator}) && {accelerator}.network != 'none' && has({type_})"
    return f"({asks} && {type_} in {list(_DOMAINS)} ? {type_} : '')"


def _share_domain(spec: DDPJobSpec) -> bool:
    def type_of(accelerator: Accelerator | None) -> str | None:
        return accelerator.type if accelerator and accelerator.domain_nodes else None

    own = (one.accelerator for one in spec.overrides or () if one.accelerator)
    return all(type_of(accelerator) == type_of(spec.accelerator) for accelerator in own)


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
    Rule(
        "spec.accelerator.network: all pods must fit into one NVLink domain; lower replicas (or "
        "elastic.maxReplicas) and spares, or set the network to none; nodes: "
        + ", ".join(f"{nodes} with {name}" for name, nodes in _DOMAINS.items()),
        f"{_WITHOUT} || !has(self.accelerator.type) || !(self.accelerator.type in {_DOMAINS})"
        f" || {_PODS} <= {_DOMAINS}[self.accelerator.type]",
        _fits_domain,
    ),
    Rule(
        "spec.overrides: with an NVLink domain all pods are in it; remove accelerator from "
        "overrides, or set spec.accelerator.network and that of overrides to none",
        "!has(self.overrides) || self.overrides.all(o, !has(o.accelerator)"
        f" || {_domain_type('o.accelerator')} == {_domain_type('self.accelerator')})",
        _share_domain,
    ),
)
