"""Figures and tables of the benchmark of the operator."""

import ast
from pathlib import Path

import orjson
import pytest
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.ports import Key

from tests.bench import benchmark
from tests.bench.server import workload
from tests.bench.server.creation import RawRun
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
    raw = RawRun(pods=800, seconds=1.5, body_bytes=7)
    counted = Requests({("POST", "pods"): 2})
    assert benchmark.as_json({"runs": {50: [raw]}, "requests": counted}) == {
        "runs": {"50": [{"pods": 800, "seconds": 1.5, "body_bytes": 7}]},
        "requests": {"POST pods": 2},
    }


def test_spread_shows_median_and_range() -> None:
    assert benchmark.spread([3.0, 1.0, 2.04], 1) == "2.0 (1.0-3.0)"


def test_requests_are_summed_into_writes() -> None:
    counted = parse_requests(METRICS)
    assert counted.writes() == {("POST", "pods"): 802, ("PATCH", "ddpjobs/status"): 100}
    assert counted.writes(events=True)[("POST", "events")] == 100


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
