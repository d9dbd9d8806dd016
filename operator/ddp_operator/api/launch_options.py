"""Reads the options of a launcher of ranks, such as torchrun's --nnodes, up to its script."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ddp_operator.api.command import FABRIC, TUNE, Started


class _Grammar(NamedTuple):
    """The names of a launcher's options, without dashes before them."""

    values: frozenset[str]
    """Options that take the next word as a value."""
    switches: frozenset[str]
    prefixes: tuple[str, ...] = ()
    """Beginnings of other names that take a value."""
    pods: str = "nnodes"
    processes: str = "nproc-per-node"
    node_rank: str = "node-rank"
    address: str = "master-addr"
    port: str = "master-port"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TORCHRUN: Final = _Grammar(
    _names(
        "nnodes nproc-per-node node-rank master-addr master-port local-addr rdzv-backend rdzv-id "
        "rdzv-endpoint rdzv-conf max-restarts monitor-interval start-method role log-dir r "
        "redirects t tee local-ranks-filter log-line-prefix-template logs-specs "
        "event-log-handler numa-binding signals-to-handle shutdown-timeout "
        "duplicate-stdout-filters duplicate-stderr-filters"
    ),
    _names("standalone m module no-python run-path use-env virtual-local-rank"),
)
_ACCELERATE: Final = _Grammar(
    _names(
        "config-file num-processes num-machines machine-rank main-process-ip main-process-port "
        "mixed-precision dynamo-backend gpu-ids role tee num-cpu-threads-per-process rdzv-backend "
        "rdzv-conf max-restarts monitor-interval log-dir zero-stage zero3-init-flag "
        "zero3-save-16bit-model gradient-accumulation-steps gradient-clipping "
        "offload-optimizer-device offload-param-device offload-optimizer-nvme-path "
        "offload-param-nvme-path"
    ),
    _names(
        "cpu multi-gpu tpu use-deepspeed use-fsdp use-megatron-lm m module no-python debug q quiet "
        "mps use-xpu same-network enable-cpu-affinity use-parallelism-config dynamo-use-dynamic"
    ),
    prefixes=("fsdp-", "deepspeed-", "megatron-lm-", "parallelism-config-", "fp8-"),
    pods="num-machines",
    processes="num-processes",  # of all pods
    node_rank="machine-rank",
    address="main-process-ip",
    port="main-process-port",
)
_DEEPSPEED: Final = _Grammar(
    _names(
        "hostfile H include i exclude e num-nodes num-gpus master-port master-addr node-rank "
        "launcher launcher-args ssh-port min-elastic-nodes max-elastic-nodes bind-core-list "
        "autotuning enable-each-rank-log"
    ),
    _names(
        "no-ssh no-ssh-check force-multi module no-python no-local-rank save-pid elastic-training "
        "bind-cores-to-rank"
    ),
    pods="num-nodes",
    processes="num-gpus",
)
_COMPOSER: Final = _Grammar(
    _names("n nproc stdout stderr world-size base-rank node-rank master-addr master-port"),
    _names("v verbose m module-mode c command-mode version"),
    pods="",
    processes="nproc",
)
_FABRIC: Final = _Grammar(
    _names("accelerator strategy devices num-nodes node-rank main-address main-port precision"),
    frozenset(),
    pods="num-nodes",
    processes="devices",
    address="main-address",
    port="main-port",
)
_ACCELERATE_NAMES: Final = (
    *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
    "accelerate.commands.accelerate_cli",
)
_DEEPSPEED_NAMES: Final = ("deepspeed", "deepspeed.launcher.runner")
_COMPOSER_NAMES: Final = ("composer", "composer.cli.launcher")

_ROLES: Final = ("pods", "processes", "node_rank", "address", "port")
"""Fields of a grammar that name options with one meaning."""
_BY_TORCHRUN: Final = {
    "PET_NNODES": "nnodes",
    "PET_NPROC_PER_NODE": "nproc-per-node",
    "PET_NODE_RANK": "node-rank",
    "PET_MASTER_ADDR": "master-addr",
    "PET_RDZV_ENDPOINT": "rdzv-endpoint",
}
_BY_OTHERS: Final = {
    "RANK": "node-rank",
    "NODE_RANK": "node-rank",
    "MASTER_ADDR": "master-addr",
    "WORLD_SIZE": "world-size",
}
"""Variables that act like options: for torchrun, and for scripts and composer."""
_WITH_HOSTS: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "horovodrun", "colossalai")
_HOSTS: Final = frozenset({"hostfile", "machinefile", "f", "H", "host", "hosts"})
"""Options that name other machines, without the dashes before them."""


@dataclass(frozen=True)
class Option:
    """An option of a launcher."""

    name: str
    """Without the dashes before it, and with dashes between its words."""
    value: str
    """Empty for a switch."""
    words: tuple[str, ...]
    """The words of the command line that it consists of."""


@dataclass(frozen=True)
class Options:
    """The options of a launcher, in their order."""

    all: tuple[Option, ...] = ()
    end: int = 0
    """Index of the first word after them."""
    unread: str = ""
    """An option with an unknown name, or without its value. Reading ends before it."""
    roles: Mapping[str, Option] = field(default_factory=dict)
    """The options, or variables, that describe the group, by what torchrun calls them."""


def options(found: Started) -> Options:
    """Read the options of a launcher. Those of a launcher that is not known here are none."""
    grammar, by_role = _grammar(found), _variables(found)
    if grammar is None:
        return Options(end=found.begin, roles=by_role)
    words, at, unread = found.words, found.begin, ""
    if grammar is _ACCELERATE and words[at : at + 1] == ("launch",):
        at += 1
    read: list[Option] = []
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        flag, has_value, value = words[at].partition("=")
        name = flag.lstrip("-").replace("_", "-")
        end = at + 1
        if name not in grammar.switches and not has_value:
            is_known = name in grammar.values or name.startswith(grammar.prefixes)
            if not is_known or end == len(words):
                unread = flag
                break
            value, end = words[end], end + 1
        read.append(Option(name, value, words[at:end]))
        at = end
    roles = {getattr(grammar, role) or None: getattr(_TORCHRUN, role) for role in _ROLES}
    if grammar is _COMPOSER:
        roles["n"] = _TORCHRUN.processes
    by_role |= {roles.get(one.name, one.name): one for one in read}
    return Options(tuple(read), at, unread, by_role)


def _variables(found: Started) -> dict[str, Option]:
    """Return variables that the command line gives to the program, by their role."""
    if found.launcher and not (found.by_torchrun or found.launcher in _COMPOSER_NAMES):
        return {}
    names, roles = _BY_TORCHRUN if found.by_torchrun else _BY_OTHERS, {}
    for word in found.assigned:
        name, _, value = word.partition("=")
        if name in names:
            roles[names[name]] = Option(name, value, (word,))
    return roles


def _grammar(found: Started) -> _Grammar | None:
    if found.by_torchrun or found.launcher == TUNE:
        return _TORCHRUN
    by_launcher = {
        **dict.fromkeys(_ACCELERATE_NAMES, _ACCELERATE),
        **dict.fromkeys(_DEEPSPEED_NAMES, _DEEPSPEED),
        **dict.fromkeys(_COMPOSER_NAMES, _COMPOSER),
        **dict.fromkeys(FABRIC, _FABRIC),
    }
    return by_launcher.get(found.launcher)


def why_alone(found: Started, own: Options, replicas: int) -> str:
    """Return why each pod would train alone, and what to do; empty if none would."""
    launcher = found.launcher
    if launcher == TUNE and "rdzv-endpoint" not in own.roles:
        return (
            f"tune run trains alone in each pod without --rdzv_endpoint; add --nnodes {replicas} "
            "--rdzv_backend c10d --rdzv_endpoint $(MASTER_ADDR):$(MASTER_PORT)"
        )
    if "nnodes" in own.roles:
        return ""
    if launcher.startswith("accelerate") and "config-file" not in own.roles:
        return (
            "accelerate does not read the job's number of pods, and may train alone in each; add "
            "--num_machines, --machine_rank $(NODE_RANK) and --main_process_ip $(MASTER_ADDR)"
        )
    if launcher in FABRIC:
        return (
            f"{launcher} does not read the job's number of pods, and trains alone in each; add "
            f"--num-nodes {replicas}, --node-rank $(NODE_RANK) and --main-address $(MASTER_ADDR)"
        )
    is_alone = launcher.startswith("deepspeed") and "hostfile" not in own.roles
    if is_alone or (launcher in _WITH_HOSTS and not _names_hosts(found)):
        return (
            f"{found.called} does not read the job's number of pods, and trains alone in each "
            "without a hostfile; start the script with torchrun instead"
        )
    return ""


def _names_hosts(found: Started) -> bool:
    words = found.words[found.begin :]
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, _, value = word.partition("=")
        if name.startswith("-") and name.lstrip("-") in _HOSTS:
            return not (value or following).startswith("localhost")
    return False
