"""Signals of a node's health and future: its conditions, taints, labels and annotations.

Many tools write such signals: the cloud, its device plugins, problem detectors. Administrators can
change the lists of signals that mean that a node is broken or about to leave.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

from ddp_operator.api.values.bounded import read_epoch, read_time
from ddp_operator.ports import Node

Kind = Literal["condition", "taint", "label", "annotation"]

NONE: Final = "none"
"""In a list of rules: drop the defaults."""

_SYNTAX: Final = re.compile(
    r"(?P<kind>condition|taint|label|annotation):"
    r"(?P<key>[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,314}[A-Za-z0-9])?)(?:=(?P<value>[^=]{0,256}))?"
)
_MAX_RULES: Final = 100
_MAX_WORDS: Final = 200
_MAX_BOOT_ID: Final = 64

_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TERMINATION_TIME: Final = "node.gke.io/machine-termination-datetime"
"""GKE's annotation with the time (RFC 3339) at which a machine with limited run time ends."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One signal: a condition with this status, or a taint, label or annotation with this value or
    any.
    """

    kind: Kind
    key: str
    value: str | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read `condition:TYPE[=STATUS]`, or `taint:`, `label:`, `annotation:` and `KEY[=VALUE]`.

        Raises:
            ValueError: the text has another form. The message shows the right one.
        """
        found = _SYNTAX.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text[:_MAX_WORDS]!r} is not a node signal; use condition:TYPE, "
                "condition:TYPE=STATUS (default status: True), or taint:KEY, label:KEY, "
                "annotation:KEY, each also with =VALUE"
            )
        kind, value = cast(Kind, found["kind"]), found["value"]
        if kind == "condition" and value is None:
            value = "True"
        return cls(kind, found["key"], value)

    def __str__(self) -> str:
        plain = self.value is None or (self.kind == "condition" and self.value == "True")
        return f"{self.kind} {self.key}" + ("" if plain else f"={self.value}")


def _rules(kind: Kind, *keys: str) -> tuple[Rule, ...]:
    return tuple(Rule.read(f"{kind}:{key}") for key in keys)


DEFAULT_BAD: Final = (
    # GKE's device plugin: Xids that it considers critical.
    *_rules("condition", "XidCriticalError"),
    # node-problem-detector: conditions that its own rules never clear, and those of a node on which
    # pods may fail to start.
    *_rules(
        "condition",
        "KernelDeadlock",
        "ReadonlyFilesystem",
        "XfsShutdown",
        "FrequentKubeletRestart",
        "FrequentContainerdRestart",
        "FrequentUnregisterNetDevice",
    ),
    # NVSentinel: true only for fatal faults, from DCGM, the system log and NVSwitch.
    *_rules(
        "condition",
        "GpuMemWatch",
        "GpuThermalWatch",
        "GpuPcieWatch",
        "GpuPowerWatch",
        "GpuInforomWatch",
        "GpuSmWatch",
        "GpuNvlinkWatch",
        "GpuMcuWatch",
        "GpuPmuWatch",
        "GpuDriverWatch",
        "GpuXidError",
        "SysLogsXIDError",
        "SysLogsSXIDError",
        "SysLogsGPUFallenOff",
        "NVSwitchFatalError",
        "NVSwitchDown",
    ),
    # Taints that its documentation recommends for such nodes.
    *_rules(
        "taint",
        "nvidia.com/gpu-error",
        "nvidia.com/gpu-xid-error",
        "nvidia.com/gpu-nvlink-error",
        "nvidia.com/syslog-xid-error",
    ),
)

MAINTENANCE: Final = Rule("label", "cloud.google.com/scheduled-maintenance-time")
"""GKE: a maintenance will stop the machine. The value is its time (seconds since 1970), up to seven
days ahead, so the node leaves only near that time."""

DEFAULT_LEAVING: Final = (
    # Kubernetes' own from 1.37, set by administrators and their controllers.
    *_rules(
        "condition",
        "DrainInProgress",
        "MaintenancePlanned",
        "MaintenanceInProgress",
        "GracefulNodeShutdownInProgress",
    ),
    # GKE: the machine is being preempted or maintained, and ends within its grace period. A
    # maintenance that has begun stops it after some minutes.
    *_rules("taint", "cloud.google.com/impending-node-termination"),
    *_rules("taint", "cloud.google.com/maintenance-window-started"),
    MAINTENANCE,
    *_rules("label", "cloud.google.com/active-node-maintenance=ONGOING"),
    # The cluster autoscaler: nodes that it has decided to remove.
    *_rules("taint", "ToBeDeletedByClusterAutoscaler"),
    # NVSentinel: maintenance that the cloud has announced.
    *_rules("condition", "CSPMaintenance"),
)


def read_rules(texts: Sequence[str], defaults: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the defaults and the given rules. `none` drops everything before it.

    Raises:
        ValueError: a text is not a rule, or there are too many.
    """
    rules = list(defaults)
    for text in texts:
        if text == NONE:
            rules.clear()
        else:
            rules.append(Rule.read(text))
    if len(rules) > _MAX_RULES:
        raise ValueError(f"{len(rules)} node signals are too many; use at most {_MAX_RULES}")
    return tuple(dict.fromkeys(rules))


@dataclass(frozen=True, slots=True)
class Rules:
    """Signals that mean that a node is broken, or about to leave."""

    bad: tuple[Rule, ...] = DEFAULT_BAD
    leaving: tuple[Rule, ...] = DEFAULT_LEAVING


DEFAULT_RULES: Final = Rules()


def read_node(node: Mapping[str, Any], rules: Rules) -> Node:
    """Return a node as the API server stores it. Of the matching rules, it names the first."""
    metadata, status = node["metadata"], node.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    present: dict[str, Mapping[str, str]] = {
        "condition": {type_: c.get("status") or "" for type_, c in conditions.items()},
        "taint": {
            taint.get("key"): taint.get("value") or ""
            for taint in (node.get("spec") or {}).get("taints") or ()
        },
        "label": metadata.get("labels") or {},
        "annotation": metadata.get("annotations") or {},
    }

    def first(candidates: Iterable[Rule]) -> str:
        for rule in candidates:
            value = present[rule.kind].get(rule.key)
            if value is not None and rule.value in (None, value):
                reason = ""
                if rule.kind == "condition":
                    reason = conditions[rule.key].get("reason") or ""
                return f"{rule}{f' ({reason})' if reason else ''}"[:_MAX_WORDS]
        return ""

    scheduled = present["label"].get(MAINTENANCE.key) if MAINTENANCE in rules.leaving else None
    return Node(
        name=metadata["name"],
        labels=dict(present["label"]),
        boot_id=((status.get("nodeInfo") or {}).get("bootID") or "")[:_MAX_BOOT_ID],
        bad=first(rules.bad),
        leaving=first(rule for rule in rules.leaving if rule != MAINTENANCE),
        ends_at=read_time(present["annotation"].get(TERMINATION_TIME)),
        maintenance_at=read_epoch(scheduled),
        # Before its kubelet's first report a node is new, not unready.
        unready=_UNREACHABLE in present["taint"]
        or present["condition"].get("Ready", "True") != "True",
    )
