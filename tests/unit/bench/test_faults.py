"""When faults come, and what the benchmark of them says of its runs."""

from itertools import islice

import pytest

from tests.bench.benchmark import BenchmarkError
from tests.bench.reports.faults import FAULTS, Fault, Pace, Pair, Run, table

OFTEN, SELDOM = Pace(20, steps=750), Pace(60, steps=1200)
ALONE = Run(80.0)


def test_faults_come_at_fixed_times_in_turns() -> None:
    first = list(islice(OFTEN.faults(0), 5))
    assert [at for at, _ in first] == [20, 40, 60, 80, 100]
    assert [fault for _, fault in first] == [*FAULTS, FAULTS[0]]
    assert next(SELDOM.faults(0)) == (60, Fault("delete pod", 0))


def test_two_repetitions_see_all_faults_even_where_only_two_fit_in() -> None:
    seen = {fault for number in (0, 1) for _, fault in islice(SELDOM.faults(number), 2)}
    assert seen == set(FAULTS)
    assert {fault.kind for _, fault in islice(SELDOM.faults(0), 2)} == {"delete pod", "kill rank"}


def test_the_table_fits_a_terminal_and_names_what_was_missed() -> None:
    good, slow = Pair(ALONE, Run(82.0, 3)), Pair(ALONE, Run(90.0, 4))
    given_up = Pair(ALONE, Run(600.0, 29, finished=False))
    outcome = table(
        {
            "spares": {OFTEN: [good, good, slow], SELDOM: [good]},
            "elastic": {OFTEN: [good], SELDOM: [slow]},
            "torchrun": {OFTEN: [good, given_up], SELDOM: [slow]},
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
    assert [run["ratio"] for run in outcome.data["spares"]["20"]] == [1.025, 1.025, 1.125]


def test_a_run_that_was_given_up_meets_no_aim() -> None:
    given_up = Pair(Run(590.0), Run(600.0, 3, finished=False))
    assert table({"spares": {OFTEN: [given_up]}}, {"spares": 1.05}).text.endswith("MISSED")


def test_a_training_that_no_fault_hit_proves_nothing() -> None:
    with pytest.raises(BenchmarkError, match="no fault hit"):
        _ = Pair(ALONE, Run(80.0)).ratio
