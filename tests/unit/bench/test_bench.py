"""Figures and tables of the benchmark of the operator."""

import ast
import json
from pathlib import Path

import orjson
import pytest
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.ports import Key

from tests.bench import benchmark
from tests.bench.operator.large import Step, table
from tests.bench.reports import creation as report
from tests.bench.reports.creation import Repetition, Results
from tests.bench.server import workload
from tests.bench.server.creation import JobsRun, RawRun, Shape
from tests.bench.server.metrics import Requests, parse_requests

METRICS = """\
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 800
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 2
apiserver_request_total{code="200",resource="pods",subresource="",verb="LIST"} 1e+03
apiserver_request_total{code="200",resource="ddpjobs",subresource="status",verb="PATCH"} 100
apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 100
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 7
apiserver_request_total{code="0",resource="pods",subresource="",verb="WATCH"} 3
apiserver_request_total{code="200",resource="",subresource="/healthz",verb="GET"} 50
apiserver_request_duration_seconds_count{resource="pods",verb="POST"} 800
"""


@pytest.mark.parametrize("name", benchmark.names())
def test_every_benchmark_has_a_docstring_and_measure(name: str) -> None:
    # Not imported: that takes seconds where torch comes with it.
    folder, _, stem = name.partition("-")
    path = Path(benchmark.__file__).with_name(folder) / f"{stem.replace('-', '_')}.py"
    module = ast.parse(path.read_text())
    assert ast.get_docstring(module)
    functions = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    assert "measure" in functions


def test_results_become_json_data() -> None:
    step = Step(seconds=1.5, cpu_seconds=0.5, memory_mb=90.0, writes=7)
    counted = Requests({("POST", "pods"): 2})
    assert benchmark.as_json({"steps": {50: [step]}, "requests": counted}) == {
        "steps": {"50": [{"seconds": 1.5, "cpu_seconds": 0.5, "memory_mb": 90.0, "writes": 7}]},
        "requests": {"POST pods": 2},
    }


def test_spread_shows_median_and_range() -> None:
    assert benchmark.spread([3.0, 1.0, 2.04], 1) == "2.0 (1.0-3.0)"


def test_requests_are_summed_into_writes_and_reads() -> None:
    counted = parse_requests(METRICS)
    assert counted.writes() == {("POST", "pods"): 802, ("PATCH", "ddpjobs/status"): 100}
    assert counted.writes(events=True)[("POST", "events")] == 100
    assert counted.reads() == {("LIST", "pods"): 1000}


def test_requests_since_a_moment() -> None:
    before = Requests({("POST", "pods"): 800, ("GET", "pods"): 5})
    after = Requests({("POST", "pods"): 802, ("GET", "pods"): 5, ("PATCH", "pods"): 1})
    assert after.since(before) == {("POST", "pods"): 2, ("PATCH", "pods"): 1}


def test_raw_pods_equal_the_operators_pods() -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "uid": "u"}}
    bodies = workload.pods("default", owner, 3)
    states = [project(orjson.loads(body)) for body in bodies]
    assert {state.key.name for state in states} == workload.pod_names("raw", replicas=3)
    assert {state.owner_uid for state in states} == {"u"}
    assert job_of(orjson.loads(bodies[0])) == Key("default", "raw")


def _results(*, seconds: float, memory: float, pods_posted: int) -> Results:
    shapes = (Shape(jobs=100, replicas=8), Shape(jobs=1, replicas=500))
    requests = Requests({("POST", "pods"): pods_posted, ("POST", "events"): 100})
    runs = [
        JobsRun(
            shape=shape,
            seconds=seconds,
            requests=requests,
            peak_memory_mb=memory,
            cpu_seconds=1.5,
            troubles=[],
        )
        for shape in shapes
    ]
    rounds = [Repetition(RawRun(pods=800, seconds=s, body_bytes=2345), runs) for s in (1.0, 1.5)]
    return Results("v1.20.2", rounds)


def test_table_fits_a_terminal_and_shows_missed_aims() -> None:
    good = report.table(_results(seconds=0.8, memory=90, pods_posted=800))
    assert max(len(line) for line in good.splitlines()) <= 80
    assert "MISSED" not in good
    bad = report.table(_results(seconds=10, memory=150, pods_posted=2000)).splitlines()[-1]
    assert bad.count("MISSED") == 3


def test_ratios_within_a_repetition() -> None:
    data = report.as_data(_results(seconds=1.0, memory=90, pods_posted=800))
    ratios = [repetition["jobs"][0]["ratioToRaw"] for repetition in data["repetitions"]]
    assert ratios == [1.0, 1.5]
    assert data["repetitions"][0]["jobs"][0]["writesPerJob"] == 8
    assert json.loads(json.dumps(data)) == data


def test_figures_of_a_large_job_are_per_pod() -> None:
    step = Step(seconds=12.34, cpu_seconds=5.0, memory_mb=99.6, writes=10_000)
    _, head, row = table({Shape(1, 5000): {"created": step}})
    words = " ".join(head.split())
    assert words == "1 x 5000 pods seconds CPU ms/pod writes/pod memory MB"
    assert row.split() == ["created", "12.3", "1.00", "2.00", "100"]
    assert len(head) <= 80
