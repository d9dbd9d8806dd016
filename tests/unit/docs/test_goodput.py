"""Cost of node failures: the simulation behind a picture, and the picture."""

from pathlib import Path

import pytest

from docs.pictures import goodput as picture
from docs.pictures.failures import DAY_SECONDS, RATES, Costs, Way, failures, goodput, ways

COSTS = Costs(
    notice=10, node=600, pod=4, process=6, meet=5, nccl=5, state=10, load=30, gang=8,
    keep_alive=15, save_every=90, save=10,
)  # fmt: skip
BY_NAME = {way.name: way for way in ways(COSTS)}


def seconds(name: str, *failed: float, stand_by: int = 0, last: float = 10_000.0) -> float:
    """Return the seconds of training until `last`."""
    days = last / DAY_SECONDS
    found = goodput(BY_NAME[name], COSTS, failed, nodes=4, stand_by=stand_by, days=days)
    return found * last


@pytest.mark.parametrize("way", ways(Costs(save=0)), ids=lambda way: way.name)
def test_nothing_is_lost_without_failures_and_saves(way: Way) -> None:
    assert goodput(way, Costs(save=0), []) == pytest.approx(1.0)


@pytest.mark.parametrize("stand_by", [0, 2])
@pytest.mark.parametrize("way", ways(Costs()), ids=lambda way: way.name)
def test_more_failures_cost_more(way: Way, stand_by: int) -> None:
    got = [
        goodput(way, Costs(), failures(rate, days=30), stand_by=stand_by, days=30)
        for rate in (0, *sorted(RATES.values()))
    ]
    assert got == sorted(got, reverse=True)
    assert len(set(got)) == len(got)


@pytest.mark.parametrize("stand_by", [0, 2])
def test_way_with_fewer_parts_is_no_worse(stand_by: int) -> None:
    failed = failures(RATES["RSC-1"], days=30)
    got = {
        way.name: goodput(way, Costs(), failed, stand_by=stand_by, days=30) for way in ways(Costs())
    }
    assert got["spares"] >= got["Pod"] >= got["InPlace"] >= got["Gang"]
    assert got["elastic"] >= got["Pod"]
    assert got["InPlace"] >= got["torchrun"]


# A node fails at 1,050 s, after 950 s of training: ten rounds of 90 s and a save, and 50 s.
def test_spare_takes_over_after_notice_and_rendezvous() -> None:
    # known 1,060; trains again 1,080: 8,920 s are 89 rounds of 90 s and 20 s
    assert seconds("spares", 1050, stand_by=1) == pytest.approx(900 + 50 + 89 * 90 + 20)


def test_a_new_pod_needs_a_node_and_a_process() -> None:
    # known 1,060; node 1,660; process 1,670; trains 1,690: 8,310 s
    assert seconds("Pod", 1050) == pytest.approx(950 + 83 * 90 + 10)
    # known 1,060; process 1,070; trains 1,090: 8,910 s
    assert seconds("Pod", 1050, stand_by=1) == pytest.approx(950 + 89 * 90 + 10)


def test_gang_loses_steps_since_the_last_save() -> None:
    # known 1,060; gang 1,068; process 1,078; trains 1,118: 8,882 s
    assert seconds("Gang", 1050, stand_by=1) == pytest.approx(900 + 88 * 90 + 82)


def test_elastic_group_continues_smaller_until_a_pod_is_ready() -> None:
    # known 1,060; three of four train 1,070 to 1,670; all again 1,690
    smaller = 3 / 4 * 6 * 90
    assert seconds("elastic", 1050) == pytest.approx(950 + smaller + 83 * 90 + 10)


def test_failure_during_a_recovery_restarts_it() -> None:
    # the second one strikes at 1,075: known 1,085, trains 1,105: 8,895 s
    assert seconds("spares", 1050, 1075, stand_by=2) == pytest.approx(950 + 88 * 90 + 90)


def test_failures_have_their_rate() -> None:
    days, rate, nodes = 3650, 2e-3, 100
    failed = failures(rate, nodes=nodes, days=days)
    assert len(failed) / days == pytest.approx(rate * nodes, rel=0.1)
    assert failed == sorted(failed) == failures(rate, nodes=nodes, days=days)
    assert failures(0.0) == []


def test_stored_picture_is_up_to_date() -> None:
    stored = Path(picture.__file__).with_suffix(".svg")
    assert stored.read_text() == picture.draw(), f"draw it again: see {picture.__file__}"


def test_page_has_all_assumptions() -> None:
    page = Path(picture.__file__).parents[1] / "concepts/goodput.md"
    text = page.read_text()
    for name, value in vars(Costs()).items():
        assert f"| {value:g} s |" in text, f"{page.name} does not say {name}: {value:g} s"
