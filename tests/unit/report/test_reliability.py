"""ETTR, time between failures, and what spares would have saved."""

from typing import Any

from ddp_client.report import as_dict, as_markdown, build
from ddp_client.report.facts import PodFacts
from ddp_client.report.model import FailureInterval, SpareEstimate
from ddp_client.report.reliability import effective_training_ratio

from tests.unit.cli.jobs import at, failure
from tests.unit.report.runs import facts, job, metrics, pod


def intervals(*failures: Any) -> dict[tuple[str, str], FailureInterval]:
    made = build(facts(job(failures=list(failures))))
    return {(each.group, each.name): each for each in made.failure_intervals}


def test_ettr_excludes_queueing_and_suspension() -> None:
    spent = {"pending": 500, "suspended": 900, "starting": 20, "training": 150, "lost": 30}
    assert effective_training_ratio(spent) == 0.75
    assert effective_training_ratio({"pending": 7, "training": 2, "lost": 1}) == 0.67
    assert effective_training_ratio({"starting": 7}) is None
    made = build(facts())
    # 280 of 295 s; the job waited 5 s for its nodes.
    assert as_dict(made)["effective_training_ratio"] == 0.95
    assert "waiting for nodes or quota), is 0.95." in as_markdown(made)


def test_mean_time_between_failures_by_class_and_node() -> None:
    found = intervals(
        failure(time=at(10), node="node-a"),
        failure(time=at(40), node="node-b", **{"class": "Infrastructure"}),
        failure(time=at(110), node="node-b"),
        failure(time=at(151), node="node-b"),
    )
    assert found["class", "Application"] == FailureInterval("class", "Application", 3, 70)
    assert found["class", "Infrastructure"].mean_seconds is None
    assert found["node", "node-b"] == FailureInterval("node", "node-b", 3, 56)
    assert found["node", "node-a"].count == 1
    assert next(iter(found)) == ("class", "Application"), "the most frequent first"


def test_too_few_failures_have_no_mean() -> None:
    made = build(facts(job(failures=[failure(time=at(10)), failure(time=at(90))])))
    assert "| node | node-b | 2 | too few failures |" in as_markdown(made)


def test_ignored_failures_and_parts_of_others_are_not_counted() -> None:
    found = intervals(
        failure(time=at(10)),
        failure(time=at(11), continued=True),
        failure(time=at(90), action="Ignore"),
    )
    assert found["class", "Application"].count == 1


def test_missing_older_failures_are_a_gap() -> None:
    ten = [failure(time=at(10 * number)) for number in range(10)]
    missing = "the status records only the latest 10 failures: "
    for restarts, said in ((14, "at least 4 older are"), (9, "older ones, if any, are")):
        gaps = build(facts(job(failures=ten, restarts=restarts))).gaps
        assert f"{missing}{said} missing here" in gaps
    assert not any(missing in gap for gap in build(facts(job(failures=ten[:9]))).gaps)


def test_trainer_without_step_times_is_a_gap() -> None:
    silent = job(progress={"step": 400, "updatedAt": at(240)})
    said = "does not report when it completes steps"
    assert any(said in gap for gap in build(facts(silent)).gaps)
    assert not any(said in gap for gap in build(facts()).gaps)


class TestSpares:
    def test_spares_save_the_wait_for_new_pods(self) -> None:
        # Created, scheduled and started within 5 s; the first step 8 s after the failure.
        made = build(facts())
        assert made.spare_estimate == SpareEstimate(
            recoveries=1, unknown=0, waited_seconds=5, with_spare_seconds=3
        )
        text = as_markdown(made)
        assert "An estimate from 1 recovery with new pods. It assumes" in text
        assert "| 8 s | 3 s | 5 s |" in text

    def test_recoveries_with_unknown_waits_are_left_out(self) -> None:
        twice = job(failures=[failure(time=at(20)), failure(time=at(150))])
        made = build(facts(twice))
        assert made.spare_estimate is not None
        assert (made.spare_estimate.recoveries, made.spare_estimate.unknown) == (1, 1)
        assert "left out: 1, with unknown waits" in as_markdown(made)
        assert build(facts(pods=[])).spare_estimate is None

    def test_failures_at_the_same_time_wait_once(self) -> None:
        both = job(failures=[failure(time=at(150)), failure(time=at(150), index=0)])
        made = build(facts(both))
        assert made.spare_estimate is not None
        assert (made.spare_estimate.recoveries, made.spare_estimate.waited_seconds) == (1, 5)

    def test_older_trainer_leaves_the_gain_unknown(self) -> None:
        old = [one for one in metrics() if '"kind": "start"' not in one]
        made = build(facts(lines=old))
        assert made.spare_estimate == SpareEstimate(1, 0, 5, None)
        assert "| not known | not known | 5 s |" in as_markdown(made)

    def test_restart_in_place_has_no_estimate(self) -> None:
        in_place = job(failures=[failure(time=at(150), action="RestartInPlace")])
        assert build(facts(in_place)).spare_estimate is None

    def test_groups_with_spares_or_elastic_have_no_estimate(self) -> None:
        for field in ({"spares": 1}, {"elastic": {"minReplicas": 1}}):
            other = job(failures=[failure(time=at(150), action="RestartPod")])
            other["spec"] |= {"restart": {"scope": "Pod"}, **field}
            new = PodFacts.read(pod(1, attempt=0, begins=155, name="digits-0-1-r1"))
            assert build(facts(other, pods=[new])).spare_estimate is None
