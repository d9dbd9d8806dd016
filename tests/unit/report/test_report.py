"""The content of a report, also from hostile data."""

import json
import math
from typing import Any, ClassVar
from xml.etree import ElementTree

import matplotlib
import pytest
from ddp_client import report as reports
from ddp_client.report import Facts, as_dict, as_html, as_markdown, build, pictures
from ddp_client.report.curves import MOST_ROWS
from ddp_client.report.facts import LogEnd, PodFacts
from ddp_client.report.history import History, read, read_bytes
from ddp_client.report.tables import sections
from ddp_client.views.job.snapshot import JobSnapshot

from tests.good_manifests import Json
from tests.unit.cli.jobs import ESCAPES, at, condition, failure
from tests.unit.job.builders import NAME, later, stored_job
from tests.unit.report.runs import facts, job, line, metrics, pod

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}$\\frac{1}{0}$"


def history(lines: Any) -> History:
    return read(one.encode() for one in lines)


class TestRecoveries:
    def test_recovery_has_the_seconds_of_each_part(self) -> None:
        [recovery] = build(facts()).recoveries
        # The gang's last pod: created, scheduled and started 2, 3 and 5 s after the failure.
        assert recovery.parts == (2.0, 1.0, 2.0, 1.0, 2.0)
        assert recovery.seconds == 8.0
        assert (recovery.rank, recovery.node, recovery.charged) == (1, "node-b", True)
        assert "ValueError: bad batch" in recovery.cause

    def test_parts_of_deleted_pods_are_unknown(self) -> None:
        made = build(facts(pods=[]))
        [recovery] = made.recoveries
        assert recovery.parts == (None, None, None, None, 2.0)
        assert any("incomplete" in gap for gap in made.gaps)

    def test_older_trainer_leaves_parts_unknown(self) -> None:
        old = [one for one in metrics() if '"kind": "start"' not in one]
        made = build(facts(lines=old))
        assert made.recoveries[0].parts == (2.0, 1.0, 2.0, None, None)
        assert made.recoveries[0].seconds is None
        assert any("older image" in gap for gap in made.gaps)

    def test_events_after_the_next_failure_belong_to_it(self) -> None:
        twice = job(failures=[failure(time=at(120)), failure(time=at(150))])
        first, second = build(facts(twice)).recoveries
        assert first.parts == (None,) * 5
        assert second.seconds == 8.0

    def test_failure_that_ends_a_job_has_no_recovery(self) -> None:
        last = job(failures=[failure(time=at(150), action="FailJob")])
        assert build(facts(last)).recoveries[0].parts == (None,) * 5

    def test_replacement_of_one_pod(self) -> None:
        alone = job(attempt=0, failures=[failure(time=at(150), action="RestartPod")])
        new = pod(1, attempt=0, begins=155, name="digits-0-1-r1")
        old = pod(0, attempt=0, begins=2)
        made = build(facts(alone, pods=[PodFacts.read(new), PodFacts.read(old)]))
        assert made.recoveries[0].parts[:2] == (5.0, 1.0)

    def test_different_clocks_make_no_negative_times(self) -> None:
        early = [PodFacts.read(pod(index, begins=149.5)) for index in range(2)]
        assert build(facts(pods=early)).recoveries[0].parts[0] == 0.0


class TestCurves:
    def test_100000_steps_are_few_points_and_a_small_page(self) -> None:
        lines = [one.encode() for one in metrics(100_000, every=10)]
        made = build(facts(history=read(lines)))
        assert made.points[-1].step == 100_000
        assert 250 < len(made.points) <= 500
        page = as_html(made)
        assert len(page) < 1_000_000
        assert len(as_markdown(made)) < 100_000

    def test_spike_between_points_is_shown(self) -> None:
        lines = list(metrics(20_000))
        lines[1000] = lines[1000].replace('"loss": ', '"loss": 77, "was": ')
        made = build(facts(lines=lines))
        assert max(point.loss_high or 0 for point in made.points) == 77

    def test_step_times_are_the_trainers_own(self) -> None:
        times = build(facts()).step_times
        assert times is not None
        # 5 seconds of phases in 10 steps; 2 of the 40 intervals include a start.
        assert (times.median, times.p99, times.longest) == (0.5, 0.5, 0.9)
        assert times.steps == sum(times.counts) == 380

    def test_ranks_by_how_often_they_were_slowest(self) -> None:
        first, second = build(facts()).ranks
        assert (first.rank, first.times, second.rank, second.times) == (1, 30, 0, 10)
        assert first.mean_ratio == pytest.approx(1.5)
        assert first.held_up == 7

    def test_checkpoints_and_what_they_cost(self) -> None:
        saves = build(facts()).saves
        assert saves is not None
        assert (saves.known, saves.mean_seconds, saves.held_up_seconds) == (4, 1.5, 10.0)
        assert [row.step for row in saves.rows] == [100, 200, 300, 400]

    def test_missing_loss_is_a_gap_in_the_curve(self) -> None:
        lines = [
            line("training", step, loss=loss, samplesPerSecond=1.0)
            for step, loss in ((1, 1.0), (2, None), (3, 0.5))
        ]
        made = build(facts(lines=lines))
        assert [point.loss for point in made.points] == [1.0, None, 0.5]
        assert "NaN" not in json.dumps(as_dict(made), allow_nan=False)
        assert "<svg" in as_html(made)

    def test_pictures_are_xml_with_titles_and_unique_ids(self) -> None:
        drawn = pictures.draw(build(facts()))
        assert set(drawn) == {
            *("timeline", "recoveries", "goodput", "loss", "throughput", "steps", "phases"),
            *("checkpoints", "accuracy"),
        }
        ids: list[str] = []
        for name, svg in drawn.items():
            tree = ElementTree.fromstring(svg.replace("<svg ", "<svg xmlns='' ", 1))
            assert [child.tag for child in tree][:2] == ["title", "desc"]
            assert all(child.text for child in list(tree)[:2])
            ids += [found.get("id", "") for found in tree.iter() if found.get("id")]
            assert "#0102" not in svg, f"a colour of {name} is not the theme's"
        assert len(ids) == len(set(ids))

    def test_matplotlibrc_of_the_working_directory_has_no_effect(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = as_html(build(facts()))
        # What matplotlib has read from it at its import; usetex runs the program latex.
        monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
        monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 40)
        assert as_html(build(facts())) == plain


class TestWithoutMetricsFile:
    KEPT: ClassVar[Json] = {"curve": "10:2.5 100:1.5:0.5 200:0.25 210::0.875"}

    def test_curve_that_the_status_keeps_is_shown(self) -> None:
        made = build(facts(job(bookkeeping=self.KEPT), lines=[]))
        assert [(p.step, p.loss, p.time) for p in made.points] == [
            *((10, 2.5, None), (100, 1.5, None), (200, 0.25, None))
        ]
        assert (made.scores, made.accuracy) == (((100, 0.5), (210, 0.875)), 0.875)
        assert {"loss", "accuracy"} <= set(pictures.draw(made))
        assert any("that the job's status keeps" in gap for gap in made.gaps)

    def test_metrics_file_wins(self) -> None:
        made = build(facts(job(bookkeeping=self.KEPT)))
        assert len(made.points) == 40
        assert not any("status keeps" in gap for gap in made.gaps)


class TestOrder:
    def test_loss_and_accuracy_come_first(self) -> None:
        assert [section.title for section in sections(build(facts()))][:3] == [
            *("Loss", "Accuracy on the test set", "Attempts and pods")
        ]

    def test_remedies_and_log_are_before_the_first_picture(self) -> None:
        failed = job(phase="Failed", conditions=[condition("Failed", "MaxRestartsExceeded")])
        made = build(facts(failed, log=LogEnd(f"{NAME}-1-0", ("step 7", "the end"))))
        assert any("a failed job does not start again" in remedy for remedy in made.remedies)
        page = as_html(made)
        places = [page.index(text) for text in ("What to do", "step 7\nthe end", "<svg")]
        assert places == sorted(places)

    def test_logs_are_of_the_pod_and_of_those_that_are_gone(self) -> None:
        made = build(facts(log=LogEnd(f"{NAME}-1-0", ("export HF_TOKEN=abcdefgh12345", ESCAPES))))
        assert [log.pod for log in made.logs] == [f"{NAME}-1-0", f"{NAME}-0-1"]
        assert made.logs[0].lines[0] == "export HF_TOKEN=<removed>"
        assert made.logs[1].lines[-1] == "ValueError: bad batch"
        text = as_markdown(made)
        assert "\x1b" not in text
        assert "\n    ValueError: bad batch\n" in text

    def test_hostile_log_is_code(self) -> None:
        made = build(facts(log=LogEnd(HOSTILE, (HOSTILE, "```", "</pre>"))))
        page = as_html(made)
        assert "<script" not in page
        assert page.count("</pre>") == len(made.logs)
        assert f"    {HOSTILE}\n    ```\n    </pre>\n" in as_markdown(made)

    def test_table_of_failures_has_few_columns(self) -> None:
        [table] = [one for one in sections(build(facts())) if one.name == "recoveries"]
        assert table.heading == ("time", "cause", "rank", "node", "action", "parts", "total")
        assert table.rows[0][-2:] == (
            "replace 2.00 s, schedule 1.00 s, start 2.00 s, form 1.00 s, first step 2.00 s",
            "8.00 s",
        )


class TestMoney:
    def test_gpu_hours_and_cost(self) -> None:
        with_gpus = stored_job(
            status=job()["status"],
            backend="nccl",
            accelerator={"type": "nvidia-h100-80gb", "count": 8},
        )
        made = build(facts(with_gpus, after=300), prices={"nvidia-h100-80gb": 3.5})
        [use] = made.usages
        # 300 s since its creation: 5 s pending, 10 s lost.
        assert use.count == 16
        assert use.used_hours == pytest.approx(16 * 295 / 3600)
        assert use.lost_hours == pytest.approx(16 * 10 / 3600)
        assert use.cost == pytest.approx(16 * 295 / 3600 * 3.5)
        without = build(facts(with_gpus), prices={"nvidia-l4": 1.0})
        assert without.usages[0].cost is None
        assert "no price given" in as_markdown(without)

    def test_a_price_of_whole_pods_includes_spares(self) -> None:
        with_spare = job()
        with_spare["spec"] |= {"spares": 1, "restart": {"scope": "Pod"}}
        [cost] = build(facts(with_spare), price_per_pod=12.0).usages
        # Three pods for 295 s, 10 s of them lost.
        assert (cost.kind, cost.count) == ("pods", 3)
        assert cost.used_hours == pytest.approx(3 * 295 / 3600)
        assert (cost.cost, cost.lost_cost) == pytest.approx((2.95, 0.10))
        assert "| pods | 3 | 0.25 | 0.01 | 12.00 | 2.95 | 0.10 |" in as_markdown(
            build(facts(with_spare), price_per_pod=12.0)
        )
        assert build(facts()).usages == ()


class TestUnusualInput:
    def test_new_job(self) -> None:
        made = build(Facts.of(stored_job(), now=later(5)))
        assert (made.step, made.loss, made.points, made.recoveries) == (None, None, (), ())
        assert "Pending" in as_html(made)
        assert "Pending" in as_markdown(made)
        json.dumps(as_dict(made), allow_nan=False)

    def test_ended_job_stops_accounting(self) -> None:
        over = job(
            phase="Succeeded",
            conditions=[condition("Succeeded", "Completed", since=200)],
            completionTime=at(200),
        )
        made = build(facts(over, after=90_000))
        assert made.ended == later(200)
        assert dict(made.goodput)["training"] == 140

    def test_a_spec_of_another_release(self) -> None:
        other = job()
        other["spec"]["replicas"] = "many"
        made = build(facts(other))
        assert JobSnapshot.read(other).parsed is None
        assert any("cannot read the job's spec" in gap for gap in made.gaps)
        assert "<svg" in as_html(made)

    def test_hostile_text_is_escaped_in_html_and_markdown(self) -> None:
        hostile = job(
            reason="Bad",
            message=HOSTILE + ESCAPES,
            failures=[failure(time=at(150), node=HOSTILE, message=HOSTILE, pod=HOSTILE)],
            bookkeeping={"nodes": [{"name": HOSTILE, "failures": 2}]},
            placement=HOSTILE,
        )
        hostile["spec"]["template"]["spec"]["containers"][0]["image"] = HOSTILE
        made = build(facts(hostile, gaps=[HOSTILE]))
        page = as_html(made)
        assert "&lt;script&gt;" in page
        assert "<script" not in page
        assert "<img" not in page
        assert "\x1b" not in page
        assert "49" not in page.split("&lt;script&gt;")[1][:200], "it was taken for a template"
        text = as_markdown(made)
        # Indented lines are code.
        assert not [one for one in text.splitlines() if "<script" in one and one[:4] != " " * 4]
        assert "\x1b" not in text

    def test_report_of_rank_0_is_cut_from_the_message_of_a_success(self) -> None:
        said = "all 2 pods completed; rank 0 says: "
        for phase, text, shown in [
            ("Succeeded", f'{said}{{"step": 7}}', "all 2 pods completed"),
            ("Succeeded", f"{said}loss 0.1", f"{said}loss 0.1"),
            ("Failed", f"ValueError: {said}{{7}}", f"ValueError: {said}{{7}}"),
        ]:
            assert build(facts(job(phase=phase, message=text))).message == shown

    def test_broken_lines_are_counted_and_bounded(self) -> None:
        broken = [
            "",
            "{",
            "[]",
            "7",
            '{"kind": "training"}',
            '{"kind": "training", "step": -1}',
            '{"kind": "training", "step": true, "time": "2026-03-01T12:00:00Z"}',
            '{"kind": "training", "step": 1, "time": "soon"}',
            '{"kind": "start", "step": 1}',
            '{"kind": "other", "step": 1}',
            '{"kind": "training", "step": 1, "x": "' + "x" * 20_000 + '"}',
            '{"kind": "training", "step": 1e400}',
            "[" * 100_000,
        ]
        found = history(broken)
        assert not found
        assert found.unread == len(broken) - 1
        hostile = line(
            "training", 1, loss=1e308, samplesPerSecond=-5, dataSeconds="much", paceRank=1.5,
            lastStepTime="9999-12-31T23:59:59.999999Z",
        )  # fmt: skip
        [interval] = history([hostile]).intervals
        assert (interval.loss, interval.samples_per_second, interval.phases) == (None, None, None)
        assert interval.time == later(0).timestamp(), "the line's own time is sane"

    def test_cut_file_begins_with_a_whole_line(self) -> None:
        lines = "\n".join(metrics()).encode()
        cut = read_bytes(lines[-2000:], is_cut=True)
        assert cut.is_cut
        assert cut.unread == 0
        assert cut.intervals[-1].step == 400
        assert any("older part" in gap for gap in build(facts(history=cut)).gaps)

    def test_pods_of_other_jobs_and_malformed_pods_are_ignored(self) -> None:
        other = pod(0)
        other["metadata"]["ownerReferences"][0]["uid"] = "another"
        shapeless: Any = {"metadata": {"name": 7}, "status": []}
        given = [PodFacts.read(one) for one in (other, shapeless, pod(1))]
        assert [one.name for one in build(facts(pods=given)).pods if one.is_there] == ["digits-1-1"]

    def test_thousands_of_pods_and_saves_are_bounded(self) -> None:
        many = job()
        many["spec"]["replicas"] = 3000
        pods = [PodFacts.read(pod(index)) for index in range(3000)]
        lines = [line("checkpoint", step, savedStep=step, seconds=1.0) for step in range(1, 5000)]
        made = build(facts(many, pods=pods, lines=lines))
        assert (len(made.pods), made.pods_left_out) == (200, 2801)
        assert all(len(section.rows) <= 200 for section in sections(made))
        assert len(as_html(made)) < 1_000_000
        rows = next(s.rows for s in sections(made) if s.name == "checkpoints")
        assert len(rows) == MOST_ROWS

    def test_inconsistent_times_are_drawn(self) -> None:
        strange = [line("training", 5, loss=1.0, time=at(-9e6), samplesPerSecond=0)]
        assert "<svg" in as_html(build(facts(lines=strange, after=-50)))


def test_public_functions() -> None:
    made = reports.build(facts())
    assert as_dict(made)["recoveries"][0]["time"] == "2026-03-01T12:02:30.000Z"
    assert as_dict(made)["step"] == 400
    assert math.isclose(as_dict(made)["training_ratio"], 280 / 300)
    assert as_markdown(made).startswith("# Report of job digits\n")


def test_command_line_is_shown_without_secrets() -> None:
    secret = job()
    secret["spec"]["template"]["spec"]["containers"][0]["command"] = [
        *("python", "train.py", "--wandb-api-key=abc", "--hf-token", "def", "--lr", "1"),
        *("PASSWORD=ghi", "--token", "--epochs=3"),
    ]
    command = dict(build(facts(secret)).configuration)["command"]
    assert command == (
        "python train.py --wandb-api-key=<removed> --hf-token <removed> --lr 1 "
        "PASSWORD=<removed> --token --epochs=3"
    )
