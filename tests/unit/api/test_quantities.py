"""Quantities as Kubernetes reads them."""

from decimal import Decimal

import pytest
from ddp_operator.api.spec.checkpoint import MemoryCheckpoint
from ddp_operator.api.values.quantities import quantity


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (5, 5),
        ("0", 0),
        ("16Gi", 16 * 2**30),
        ("16G", 16 * 10**9),
        ("64k", 64_000),
        ("1Ei", 2**60),
        (".5Ki", 512),
        ("5.", 5),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("-1Mi", -(2**20)),
        ("+1500m", Decimal("1.5")),
        ("3u", Decimal("0.000003")),
    ],
)
def test_quantities(written: int | str, number: Decimal | int) -> None:
    assert quantity(written) == number


@pytest.mark.parametrize(
    "written", ["", "Gi", "16 Gi", "16gi", "1e", "1Ki5", "٣", "1\n", "0x1", "."]
)
def test_invalid_quantities(written: str) -> None:
    assert quantity(written) is None


def test_size_is_rounded_up_to_whole_bytes() -> None:
    assert MemoryCheckpoint(size_limit="0.001Mi").size_bytes == 1049
