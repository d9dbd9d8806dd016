"""Signals of nodes, and the meaning that administrators give them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from ddp_operator.__main__ import main
from ddp_operator.api.node_signals import (
    DEFAULT_BAD,
    DEFAULT_LEAVING,
    DEFAULT_RULES,
    Rule,
    Rules,
    read_node,
    read_rules,
)
from ddp_operator.ports import Node

SCHEDULED = "cloud.google.com/scheduled-maintenance-time"
WINDOW = {"key": "cloud.google.com/maintenance-window-started", "effect": "PreferNoSchedule"}
TERMINATION = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}


def manifest(
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    conditions: list[dict[str, str]] | None = None,
    boot_id: str = "b0",
) -> dict[str, Any]:
    return {
        "metadata": {"name": "node-a", "labels": labels, "annotations": annotations},
        "spec": {"taints": taints},
        "status": {"conditions": conditions, "nodeInfo": {"bootID": boot_id}},
    }


def judged(rules: Rules = DEFAULT_RULES, **node: Any) -> Node:
    """Return a node without its labels."""
    return replace(read_node(manifest(**node), rules), labels={})


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            {"conditions": [{"type": "XidCriticalError", "status": "True", "reason": "79"}]},
            "condition XidCriticalError (79)",
        ),
        (
            {"conditions": [{"type": "GpuMemWatch", "status": "True"}]},
            "condition GpuMemWatch",
        ),
        (
            {"taints": [{"key": "nvidia.com/gpu-xid-error", "effect": "PreferNoSchedule"}]},
            "taint nvidia.com/gpu-xid-error",
        ),
    ],
)
def test_default_signals_of_a_broken_node(node: dict[str, Any], words: str) -> None:
    assert judged(**node) == Node("node-a", {}, boot_id="b0", bad=words)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"taints": [TERMINATION]}, "taint cloud.google.com/impending-node-termination"),
        ({"taints": [WINDOW]}, "taint cloud.google.com/maintenance-window-started"),
        (
            {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}},
            "label cloud.google.com/active-node-maintenance=ONGOING",
        ),
        *(
            ({"conditions": [{"type": type_, "status": "True"}]}, f"condition {type_}")
            for type_ in (
                "DrainInProgress",
                "MaintenancePlanned",
                "MaintenanceInProgress",
                "GracefulNodeShutdownInProgress",
            )
        ),
    ],
)
def test_default_signals_of_a_node_that_leaves(node: dict[str, Any], words: str) -> None:
    assert judged(**node) == Node("node-a", {}, boot_id="b0", leaving=words)


@pytest.mark.parametrize(
    "node",
    [
        {"conditions": [{"type": "XidCriticalError", "status": "False", "reason": "NoXid"}]},
        {"conditions": [{"type": "KernelDeadlock", "status": "Unknown"}]},
        {"conditions": [{"type": "Ready", "status": "True"}]},
        {"labels": {"cloud.google.com/active-node-maintenance": "SCHEDULED"}},
        {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
    ],
)
def test_other_conditions_labels_and_taints_are_ignored(node: dict[str, Any]) -> None:
    assert judged(**node) == Node("node-a", {}, boot_id="b0")


def test_node_without_status_has_no_signals() -> None:
    assert read_node({"metadata": {"name": "node-a"}}, DEFAULT_RULES) == Node("node-a", {})


@pytest.mark.parametrize(
    ("text", "ends_at"),
    [
        ("2026-12-16T01:00:00Z", datetime(2026, 12, 16, 1, tzinfo=UTC)),
        ("2026-12-16T01:00:00", datetime(2026, 12, 16, 1, tzinfo=UTC)),
        ("soon", None),
        ("9" * 100_000, None),
    ],
)
def test_termination_time_of_the_machine(text: str, ends_at: datetime | None) -> None:
    result = judged(annotations={"node.gke.io/machine-termination-datetime": text})
    assert result == Node("node-a", {}, boot_id="b0", ends_at=ends_at)


@pytest.mark.parametrize(
    ("value", "maintenance_at"),
    [
        ("1798765432", datetime(2027, 1, 1, 1, 3, 52, tzinfo=UTC)),
        ("99999999999", datetime(5138, 11, 16, 9, 46, 39, tzinfo=UTC)),
        ("999999999999", None),
        ("-1", None),
        ("1.8e9", None),
        ("١٧٩٨٧٦٥٤٣٢", None),
        ("soon", None),
        ("", None),
        ("9" * 100_000, None),
    ],
)
def test_time_of_a_scheduled_maintenance(value: str, maintenance_at: datetime | None) -> None:
    result = judged(labels={SCHEDULED: value})
    assert result == Node("node-a", {}, boot_id="b0", maintenance_at=maintenance_at)


def test_scheduled_maintenance_is_a_default_that_can_be_removed() -> None:
    labels = {SCHEDULED: "1798765432"}
    none = Rules(leaving=read_rules(["none"], DEFAULT_LEAVING))
    assert judged(none, labels=labels) == Node("node-a", {}, boot_id="b0")
    again = Rules(leaving=read_rules(["none", f"label:{SCHEDULED}"], DEFAULT_LEAVING))
    assert judged(again, labels=labels) == judged(labels=labels)
    assert read_node(manifest(labels=labels), again).maintenance_at is not None


def test_administrators_can_add_and_replace_signals() -> None:
    bad = read_rules(["label:rack=7", "annotation:example.com/broken"], DEFAULT_BAD)
    rules = Rules(bad=bad)
    assert judged(rules, labels={"rack": "7"}).bad == "label rack=7"
    assert judged(rules, labels={"rack": "8"}).bad == ""
    assert judged(rules, annotations={"example.com/broken": "fan"}).bad == (
        "annotation example.com/broken"
    )
    xid = [{"type": "XidCriticalError", "status": "True"}]
    assert judged(rules, conditions=xid).bad, "the defaults hold besides"
    only = Rules(bad=read_rules(["none", "condition:Ready=Unknown"], DEFAULT_BAD))
    assert judged(only, conditions=xid).bad == ""
    assert judged(only, conditions=[{"type": "Ready", "status": "Unknown"}]).bad == (
        "condition Ready=Unknown"
    )


@pytest.mark.parametrize(
    "text",
    ["", "GpuMemWatch", "event:x", "taint:", "taint:a b", "label:a=b=c", "taint:" + "a" * 400],
)
def test_invalid_signal_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="condition:TYPE=STATUS") as refused:
        Rule.read(text)
    assert len(str(refused.value)) < 500


def test_at_most_100_signals() -> None:
    texts = [f"taint:key-{number}" for number in range(101)]
    with pytest.raises(ValueError, match="at most 100"):
        read_rules(["none", *texts], DEFAULT_LEAVING)
    assert len(read_rules(["none", *texts[:100]], DEFAULT_LEAVING)) == 100


@pytest.mark.parametrize("flag", ["--bad-node", "--leaving-node"])
def test_command_line_names_the_invalid_signal(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", flag, "condition:A", flag, "GpuMemWatch"]) == 64
    errors = capsys.readouterr().err
    assert f"{flag}: 'GpuMemWatch' is not a node signal" in errors


def test_long_texts_are_cut() -> None:
    result = judged(
        conditions=[{"type": "XidCriticalError", "status": "True", "reason": "x" * 100_000}],
        boot_id="b" * 100_000,
    )
    assert len(result.bad) == 200
    assert len(result.boot_id) == 64


def test_heartbeats_do_not_change_a_cached_node() -> None:
    """Values that no rule reads are not cached."""
    node = manifest(
        taints=[TERMINATION, {"key": "a", "effect": "PreferNoSchedule"}],
        conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"}],
        annotations={"big": "x" * 100_000},
    )
    later = manifest(
        taints=[TERMINATION],
        conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": "2"}],
    )
    kept = read_node(node, DEFAULT_RULES)
    assert kept == read_node(later, DEFAULT_RULES)
    assert kept.leaving == "taint cloud.google.com/impending-node-termination"
    assert (kept.boot_id, kept.bad, kept.ends_at) == ("b0", "", None)
