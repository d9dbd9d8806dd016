"""What the benchmark of goodput makes of two runs."""

import pytest

from tests.bench.benchmark import BenchmarkError
from tests.bench.operator.goodput import Comparison, Run, report

ALONE = Run(seconds=300.0, lost_seconds=2, disturbances=0)


def test_the_ratio_is_of_what_was_said_to_what_it_took_longer() -> None:
    pair = Comparison(ALONE, Run(seconds=500.0, lost_seconds=192, disturbances=15))
    assert (pair.longer, pair.ratio) == (200.0, 0.95)
    outcome = report({"Gang": [pair]})
    assert outcome.text.splitlines()[-1].split()[0] == "Gang"
    assert "0.95 (0.95-0.95)" in outcome.text
    assert all(len(line) <= 80 for line in outcome.text.splitlines())


def test_disturbances_that_took_no_time_prove_nothing() -> None:
    with pytest.raises(BenchmarkError, match="no time"):
        _ = Comparison(ALONE, ALONE).ratio
