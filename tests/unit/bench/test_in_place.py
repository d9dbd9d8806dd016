"""Table of the benchmark of restarts in place."""

from dataclasses import replace

from tests.bench.operator.in_place import ALL, ONE, SLOW
from tests.bench.reports.in_place import Restart, table
from tests.bench.server.launchers import address_of

RESTART = Restart(
    heard=0.01, recorded=0.02, ended=0.5, told=0.9, begun=1.0, tellings=1000, cpu=0.95
)


def test_table_fits_a_terminal_and_shows_medians_and_range() -> None:
    many = [RESTART, replace(RESTART, begun=1.25, tellings=1500), replace(RESTART, begun=100.0)]
    outcome = table({ONE: {500: many}, SLOW: {50: [RESTART], 500: many}, ALL: {500: many}})
    lines = outcome.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1] == ONE
    assert lines[2].split() == ["500", "0.01", "0.02", "0.50", "1.25", "(1.00-100.00)", "2.00",
                                "0.95"]  # fmt: skip
    assert len({len(line) for line in lines if line[0] in " l"}) == 1
    assert outcome.data[ONE]["500"]["begun"] == [1.0, 1.25, 100.0]


def test_each_launcher_has_its_own_address() -> None:
    addresses = [address_of(index) for index in range(1000)]
    assert addresses[249:251] == ["127.1.0.250", "127.1.1.1"]
    assert len(set(addresses)) == 1000
