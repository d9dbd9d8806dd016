"""A strict reader of Prometheus' text format, which fails on what a scraper would refuse."""

from __future__ import annotations

import re
from itertools import pairwise

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABELS = r'\{(?P<labels>[a-z_]+="[^"\\\n]*"(?:,[a-z_]+="[^"\\\n]*")*)\}'
_SAMPLE = re.compile(rf"(?P<name>{_NAME})(?:{_LABELS})? (?P<value>\S+)")
_COMMENT = re.compile(rf"# (?P<kind>HELP|TYPE) (?P<name>{_NAME}) (?P<text>.+)")
_SUFFIXES = ("_bucket", "_sum", "_count")


def parse(text: str) -> dict[str, float]:
    """Return values by name and labels, as in `name{label="value"}`."""
    assert text.endswith("\n")
    values: dict[str, float] = {}
    helped: set[str] = set()
    types: dict[str, str] = {}
    for line in text.splitlines():
        if comment := _COMMENT.fullmatch(line):
            name = comment["name"]
            if comment["kind"] == "HELP":
                assert name not in helped, f"{name} is described twice"
                helped.add(name)
            else:
                assert name in helped, f"{name} has a type before its description"
                assert name not in types, f"{name} has two types"
                assert comment["text"] in ("counter", "gauge", "histogram")
                types[name] = comment["text"]
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, f"no sample: {line!r}"
        family = _family(sample["name"], types)
        assert family == list(types)[-1], f"{line!r} is not below its own type"
        assert types[family] != "counter" or family.endswith("_total")
        key = line.rpartition(" ")[0]
        assert key not in values, f"{key} comes twice"
        values[key] = float(sample["value"])
    for name, kind in types.items():
        if kind == "histogram":
            _check_histogram(name, values)
    return values


def _family(name: str, types: dict[str, str]) -> str:
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and types.get(name.removesuffix(suffix)) == "histogram":
            return name.removesuffix(suffix)
    assert types.get(name) in ("counter", "gauge"), f"{name} has no type"
    return name


def _check_histogram(name: str, values: dict[str, float]) -> None:
    prefix = f'{name}_bucket{{le="'
    buckets = {
        float(key[len(prefix) :].removesuffix('"}')): value
        for key, value in values.items()
        if key.startswith(prefix)
    }
    assert list(buckets) == sorted(buckets)
    assert all(before <= after for before, after in pairwise(buckets.values()))
    assert buckets[float("inf")] == values[f"{name}_count"]
    assert f"{name}_sum" in values
