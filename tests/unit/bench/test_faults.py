"""Times of faults, and the table of the benchmark with faults."""

from itertools import islice

import pytest

from tests.bench.benchmark import BenchmarkError
from tests.bench.reports.faults import FAULTS, Fault, Pace, Pair, Run, table

OFTEN, SELDOM = Pace(20, steps=750), Pace(60, steps=1200)
ALONE = Run(80.0)


def test_faults_alternate_at_fixed_times() -> None:
    first = list(islice(OFTEN.faults(0), 5))
    assert [at for at, _ in first] == [20, 40, 60, 80, 100]
    assert [fault for _, fault in first] == [*FAULTS, FAULTS[0]]
    assert next(SELDOM.faults(0)) == (60, Fault("delete pod", 0))


def test_two_repetitions_have_all_faults() -> None:
    seen = {fault for number in (0, 1) for _, fault in islice(SELDOM.faults(number), 2)}
    assert seen == set(FAULTS)
    assert {fault.kind for _, fault in islice(SELDOM.faults(0), 2)} == {"delete pod", "kill rank"}


def test_table_fits_a_terminal_and_shows_missed_aims() -> None:
    good, slow = Pair(ALONE, Run(82.0, 3)), Pair(ALONE, Run(90.0, 4))
    aborted = Pair(ALONE, Run(600.0, 29, finished=False))
    outcome = table(
        {
            "spares": {OFTEN: [good, good, slow], SELDOM: [good]},
            "elastic": {OFTEN: [good], SELDOM: [slow]},
            "torchrun": {OFTEN: [good, aborted], SELDOM: [slow]},
        },
        {"spares": 1.05, "elastic": 1.10},
    )
    *_, spares, elastic, torchrun = outcome.text.splitlines()
    assert spares.split() == ["spares", "1.02", "(1.02-1.12)", "3-4", "1.02", "(1.02-1.02)", "3",
                              "1.05", "met"]  # fmt: skip
    assert elastic.endswith("1.10 MISSED")
    assert ">4.26 (1.02-7.50)" in torchrun
    assert not torchrun.endswith(("met", "MISSED"))
    assert max(map(len, outcome.text.splitlines())) <= 80
    aborted = Pair(Run(590.0), Run(600.0, 3, finished=False))
    assert table({"spares": {OFTEN: [aborted]}}, {"spares": 1.05}).text.endswith("MISSED")
    assert [pair.ratio for pair in outcome.data["spares"][20]] == [1.025, 1.025, 1.125]


def test_run_without_faults_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="no fault hit"):
        _ = Pair(ALONE, Run(80.0)).ratio
