"""What a node's conditions, taints, labels and annotations say of its health and its future.

Many tools write such signals: the cloud, its device plugins, detectors of problems. Which of them
mean that a node is broken, or about to go, is a list that administrators can change.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Self, cast

from ddp_operator.api.values.bounded import read_time

Kind = Literal["condition", "taint", "label", "annotation"]

NONE: Final = "none"
"""In a list of rules: without the defaults."""

_SYNTAX: Final = re.compile(
    r"(?P<kind>condition|taint|label|annotation):"
    r"(?P<key>[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,314}[A-Za-z0-9])?)(?:=(?P<value>[^=]{0,256}))?"
)
_MAX_RULES: Final = 100
_MAX_WORDS: Final = 200
_MAX_BOOT_ID: Final = 64

TERMINATION_TIME: Final = "node.gke.io/machine-termination-datetime"
"""GKE's annotation with the time, RFC 3339, at which a machine of limited run time ends."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One signal: a condition of this status, or a taint, label or annotation, of this value or of
    any.
    """

    kind: Kind
    key: str
    value: str | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read `condition:TYPE[=STATUS]`, or `taint:`, `label:`, `annotation:` and `KEY[=VALUE]`.

        Raises:
            ValueError: it is no such text; says what one looks like.
        """
        found = _SYNTAX.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text[:_MAX_WORDS]!r} is no signal of a node: say condition:TYPE, "
                "condition:TYPE=STATUS (without a status: True), or taint:KEY, label:KEY, "
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
    # GKE's device plugin: Xids that it takes for critical.
    *_rules("condition", "XidCriticalError"),
    # node-problem-detector's conditions that its own rules never take back, and those of a node on
    # which pods cannot be relied on to start.
    *_rules(
        "condition",
        "KernelDeadlock",
        "ReadonlyFilesystem",
        "XfsShutdown",
        "FrequentKubeletRestart",
        "FrequentContainerdRestart",
        "FrequentUnregisterNetDevice",
    ),
    # NVSentinel's, true for fatal faults alone: of DCGM, of the system log, of NVSwitch.
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
    # What its documentation has administrators taint such nodes with.
    *_rules(
        "taint",
        "nvidia.com/gpu-error",
        "nvidia.com/gpu-xid-error",
        "nvidia.com/gpu-nvlink-error",
        "nvidia.com/syslog-xid-error",
    ),
)

DEFAULT_LEAVING: Final = (
    # Kubernetes' own from 1.37 on, which administrators and their controllers set.
    *_rules(
        "condition",
        "DrainInProgress",
        "MaintenancePlanned",
        "MaintenanceInProgress",
        "GracefulNodeShutdownInProgress",
    ),
    # GKE's: the machine is being preempted or maintained, and ends within its time of grace.
    *_rules("taint", "cloud.google.com/impending-node-termination"),
    *_rules("label", "cloud.google.com/active-node-maintenance=ONGOING"),
    # The cluster autoscaler's, on nodes that it has decided to remove.
    *_rules("taint", "ToBeDeletedByClusterAutoscaler"),
    # NVSentinel's, of maintenance that the cloud has announced.
    *_rules("condition", "CSPMaintenance"),
)


def read_rules(texts: Sequence[str], defaults: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return the defaults and what is said besides; after `none`, only what follows it.

    Raises:
        ValueError: one of them is no rule, or there are too many.
    """
    rules = list(defaults)
    for text in texts:
        if text == NONE:
            rules.clear()
        else:
            rules.append(Rule.read(text))
    if len(rules) > _MAX_RULES:
        raise ValueError(f"{len(rules)} signals of nodes are too many: at most {_MAX_RULES}")
    return tuple(dict.fromkeys(rules))


@dataclass(frozen=True, slots=True)
class Rules:
    """Which signals mean what."""

    bad: tuple[Rule, ...] = DEFAULT_BAD
    leaving: tuple[Rule, ...] = DEFAULT_LEAVING


DEFAULT_RULES: Final = Rules()


@dataclass(frozen=True, slots=True)
class Signals:
    """What a node's signals come to: all that is kept of them."""

    boot_id: str = ""
    """Another one after each start of the machine."""
    bad: str = ""
    """What says that it is broken; empty where nothing does."""
    leaving: str = ""
    """What says that it is about to go."""
    ends_at: datetime | None = None
    """When it goes, where that is known."""


def signals(node: Mapping[str, Any], rules: Rules) -> Signals:
    """Judge a node, as the API server has it, by the rules; the first that holds is named."""
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

    return Signals(
        boot_id=((status.get("nodeInfo") or {}).get("bootID") or "")[:_MAX_BOOT_ID],
        bad=first(rules.bad),
        leaving=first(rules.leaving),
        ends_at=read_time(present["annotation"].get(TERMINATION_TIME)),
    )
