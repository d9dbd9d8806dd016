"""The checks of `kubectl ddp doctor`: findings about a cluster, each with a remedy."""

from collections.abc import Sequence

from ddp_operator.api.values.text import counted

from ddp_client.text import folded
from ddp_client.views.doctor import resources, software
from ddp_client.views.doctor.facts import Facts, Finding, Unknown

__all__ = ["Facts", "Finding", "Unknown", "examine", "shown"]


def examine(facts: Facts) -> list[Finding]:
    """Return the findings, good and bad."""
    return [
        software.server(facts),
        *software.crd(facts),
        software.operator(facts),
        software.rights(facts),
        *resources.gpus(facts),
        *resources.nvlink_domains(facts),
        resources.shared_memory(facts),
        resources.pod_security(facts),
        *resources.schedulers(facts),
        resources.storage(facts),
    ]


def shown(findings: Sequence[Finding], width: int) -> list[str]:
    """Return the findings as text, with a summary."""
    lines: list[str] = []
    for each in findings:
        lines += folded(
            f"{each.subject}: {each.text}", width, first=f"{each.level:<9}  ", rest=" " * 11
        )
        if each.remedy:
            lines += folded(each.remedy, width, first=" " * 11 + "-> ", rest=" " * 14)
    failed, warned = (sum(f.level == level for f in findings) for level in ("fail", "warn"))
    unknown = sum(f.level == "not known" for f in findings)
    parts = [counted(failed, "failure"), counted(warned, "warning")]
    if unknown:
        parts.append(f"{unknown} not known")
    return [*lines, "", ", ".join(parts)]
