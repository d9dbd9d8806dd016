"""The documentation shows the table of GPUs unchanged."""

import re
from pathlib import Path

from ddp_operator.api.gpus import GPUS

PAGE = Path(__file__).parents[3] / "docs/reference/spec.md"
_ROW = re.compile(
    r"\| `(?P<type>nvidia-[^`]+)` \| (?P<machines>[^|(]+?)(?P<arm> \(arm64\))? \| (?P<counts>[^|]+)"
    r" \| (?P<memory>\d+) GB \| (?P<fabric>[^|]+) \|"
)


def test_page_has_the_table_of_gpus() -> None:
    shown = {row["type"]: row for row in _ROW.finditer(PAGE.read_text())}
    assert list(shown) == list(GPUS)
    for name, gpu in GPUS.items():
        row = shown[name]
        assert row["machines"] == ", ".join(gpu.machines)
        assert row["counts"] == ", ".join(map(str, gpu.counts))
        assert int(row["memory"]) == gpu.memory_gb
        assert row["fabric"] == (gpu.fabric or "none")
        assert bool(row["arm"]) is gpu.arm64
