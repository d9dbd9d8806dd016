"""Table of the benchmark of restarts in place."""

from tests.bench.operator.in_place import ALL, ONE, SLOW, Restart, table
from tests.bench.server.launchers import address_of


def test_table_fits_a_terminal_and_shows_medians_and_range() -> None:
    many = [Restart(1.0, 0.95), Restart(1.25, 0.95), Restart(100.0, 0.5)]
    lines = table({ONE: {500: many}, SLOW: {50: many[:1], 500: many}, ALL: {500: many}})
    assert max(map(len, lines)) <= 80
    assert lines[1] == ONE
    assert lines[2].split() == ["500", "1.25", "(1.00-100.00)", "0.95"]
    assert len({len(line) for line in lines if line[0] in " l"}) == 1


def test_each_launcher_has_its_own_address() -> None:
    addresses = [address_of(index) for index in range(1000)]
    assert addresses[249:251] == ["127.1.0.250", "127.1.1.1"]
    assert len(set(addresses)) == 1000
