import json
from pathlib import Path

import pytest
import yaml
from ddp_client.cli import app
from ddp_client.cli.commands import wait
from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity

from tests.good_manifests import Json
from tests.unit.cli.conftest import Ddp
from tests.unit.cli.jobs import ESCAPES, failure, stored, training
from tests.unit.job.builders import NAME, fresh_job
from tests.unit.kube.fake_api_server import FakeApiServer, Fault

JOB = ("ddpjobs", "research", NAME)
_MERGE_PATCH = "application/merge-patch+json"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "POLL_SECONDS", 0.01)


def renamed(manifest: Json, name: str, namespace: str = "research") -> Json:
    return {**manifest, "metadata": {**manifest["metadata"], "name": name, "namespace": namespace}}


class TestList:
    async def test_namespace_of_the_context(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        server.create("ddpjobs", renamed(training(), "elsewhere", "other"))
        result = await ddp("list")
        assert result.exit_code == 0
        heading, row = result.stdout.splitlines()
        assert heading.split()[:3] == ["NAME", "PHASE", "READY"]
        assert row.split()[:3] == ["digits", "Running", "2/2"]
        assert len(server.requests) == 1

    @pytest.mark.parametrize("arguments", [("list", "-n", "other"), ("-n", "other", "list")])
    async def test_another_namespace(
        self, ddp: Ddp, server: FakeApiServer, arguments: tuple[str, ...]
    ) -> None:
        server.create("ddpjobs", renamed(training(), "elsewhere", "other"))
        assert "elsewhere" in (await ddp(*arguments)).stdout

    async def test_all_namespaces(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        server.create("ddpjobs", renamed(training(), "elsewhere", "other"))
        lines = (await ddp("list", "-A", "-o", "wide")).stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [
            *(["NAMESPACE", "NAME"], ["research", "digits"], ["other", "elsewhere"])
        ]

    async def test_many_jobs_are_read_in_pages(self, ddp: Ddp, server: FakeApiServer) -> None:
        for number in range(600):
            server.create("ddpjobs", renamed(training(), f"job-{number}"))
        assert len((await ddp("list")).stdout.splitlines()) == 601
        assert len(server.requests) == 3

    async def test_as_json_yaml_and_names(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        as_json = json.loads((await ddp("list", "-o", "json")).stdout)
        assert yaml.safe_load((await ddp("list", "-o", "yaml")).stdout) == as_json
        assert [item["kind"] for item in as_json["items"]] == ["DDPJob"]
        names = (await ddp("list", "-o", "name")).stdout
        assert names == "ddpjob.ddp-operator.io/digits\n"

    async def test_no_jobs(self, ddp: Ddp) -> None:
        result = await ddp("list")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "There are no DDPJobs in namespace research.\n"


class TestStatus:
    async def test_a_screen_with_its_pods(self, ddp: Ddp, server: FakeApiServer) -> None:
        uid = server.create("ddpjobs", training())["metadata"]["uid"]
        pod = manifests.pod(fresh_job(), Identity(0, 0))
        pod["metadata"]["ownerReferences"][0]["uid"] = uid
        server.create("pods", pod)
        server.create("pods", {**pod, "metadata": {**pod["metadata"], "labels": {}, "name": "x"}})
        result = await ddp("status", NAME)
        assert result.exit_code == 0, result.output
        assert "ranks       w.  1 waiting (w), 1 missing (.)" in result.stdout

    async def test_malformed_pod_is_ignored(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        pod = manifests.pod(fresh_job(), Identity(0, 0))
        pod["metadata"]["labels"]["ddp-operator.io/replica-index"] = "first"
        server.create("pods", pod)
        assert "2 missing" in (await ddp("status", NAME)).stdout

    async def test_hostile_text_never_reaches_the_terminal(
        self, ddp: Ddp, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", stored("Failed", ESCAPES, ESCAPES, placement=ESCAPES))
        as_objects = (["status", "-o", "json"], ["status", "-o", "yaml"], ["why", "-o", "json"])
        for form in (["status"], ["why"], *as_objects):
            text = (await ddp(*form, NAME)).output
            assert text.replace("\n", "").isprintable(), form

    async def test_as_yaml(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        server.objects[JOB]["metadata"]["managedFields"] = [{"manager": "kubectl"}]
        shown = yaml.safe_load((await ddp("status", NAME, "-o", "yaml")).stdout)
        assert shown["status"]["progress"]["step"] == 500
        assert "managedFields" not in shown["metadata"]

    @pytest.mark.parametrize("command", ["status", "why", "wait", "stop", "delete"])
    async def test_no_such_job(self, ddp: Ddp, command: str) -> None:
        result = await ddp(command, "nobody")
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: there is no job nobody in namespace research")
        assert "Traceback" not in result.output


async def test_why_as_json(ddp: Ddp, server: FakeApiServer) -> None:
    server.create("ddpjobs", training())
    found = json.loads((await ddp("why", NAME, "-o", "json")).stdout)
    assert sorted(found) == ["evidence", "last_words", "remedies", "sentence"]
    assert found["sentence"].startswith("digits is running, but has completed no step for")


async def test_why_explains_a_known_error(ddp: Ddp, server: FakeApiServer) -> None:
    said = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    ended = stored("Failed", "MaxRestartsExceeded", failures=[failure(message=said)])
    server.create("ddpjobs", ended)
    why = " ".join((await ddp("why", NAME)).stdout.split())
    assert "a known error: the GPU ran out of memory" in why
    assert "use smaller batches or gradient accumulation" in why


async def test_why_puts_the_teams_own_remedies_first(ddp: Ddp, server: FakeApiServer) -> None:
    said = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."
    server.create("ddpjobs", stored("Failed", "X", failures=[failure(message=said)]))
    data = {"oom": "CUDA out of memory\nAsk in #gpus for an H200", "bad": "a"}
    metadata = {"name": "ddp-remedies", "namespace": "research"}
    server.create("configmaps", {"metadata": metadata, "data": data})
    found = json.loads((await ddp("why", NAME, "-o", "json")).stdout)
    assert found["remedies"][0] == "Ask in #gpus for an H200"
    assert any("smaller batches" in remedy for remedy in found["remedies"])
    assert found["evidence"][-1].startswith("ConfigMap ddp-remedies, key bad: it has one line")


async def test_message_of_kueue_is_shown(ddp: Ddp, server: FakeApiServer) -> None:
    spec = {"scheduling": {"queueName": "team"}}
    job = server.create("ddpjobs", stored("Pending", "Queued", "all wait", spec=spec))
    name = f"{NAME}-{job['metadata']['uid'][:6]}-0"
    metadata = {"name": name, "namespace": "research"}
    pending = {"type": "QuotaReserved", "status": "False", "message": "2 more GPUs needed."}
    state = {"spec": {"active": True}, "status": {"conditions": [pending]}}
    server.create("workloads", {"metadata": metadata, **state})
    shown = " ".join((await ddp("status", NAME)).stdout.split())
    assert "Kueue 2 more GPUs needed attempt" in shown
    why = " ".join((await ddp("why", NAME)).stdout.split())
    assert why.startswith("digits is waiting, Queued: 2 more GPUs needed evidence")


class TestWait:
    @pytest.mark.parametrize(
        ("phase", "options", "code"),
        [("Succeeded", ["--for=succeeded"], 0), ("Failed", [], 3), ("Failed", ["--for=failed"], 0)],
    )
    async def test_exit_code_for_an_ended_job(
        self, ddp: Ddp, server: FakeApiServer, phase: str, options: list[str], code: int
    ) -> None:
        server.create("ddpjobs", stored(phase, "Because"))
        result = await ddp("wait", f"ddp/{NAME}", *options)
        assert result.exit_code == code
        assert f"digits is {phase} (Because)" in result.output

    async def test_timeout(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        result = await ddp("wait", NAME, "--for=succeeded", "--timeout=0.05s")
        assert result.exit_code == 124
        assert "digits is still Running (PodsReady), not succeeded" in result.stderr

    async def test_wait_continues_after_an_outage_of_the_server(
        self, ddp: Ddp, server: FakeApiServer
    ) -> None:
        created = server.create("ddpjobs", training())
        server.faults = [Fault("GET", 200, created), Fault("GET", 503, {}, times=5)]
        server.update(*JOB, {"status": stored("Succeeded")["status"]})
        assert (await ddp("wait", NAME, "--timeout=1m")).exit_code == 0
        assert not server.faults[1].times

    async def test_new_job_of_the_same_name_is_not_awaited(
        self, ddp: Ddp, server: FakeApiServer
    ) -> None:
        server.create("ddpjobs", stored("Succeeded"))
        server.faults = [Fault("GET", 200, training())]
        assert (await ddp("wait", NAME, "--for=succeeded")).exit_code == 3

    @pytest.mark.parametrize("timeout", ["soon", "-1s", "1x", ""])
    async def test_invalid_duration_is_refused(self, ddp: Ddp, timeout: str) -> None:
        result = await ddp("wait", NAME, f"--timeout={timeout}")
        assert result.exit_code == 2
        assert "90s, 5m or 1h30m" in result.stderr


class TestChanges:
    @pytest.mark.parametrize(
        ("command", "suspended", "patch"),
        [
            (["stop"], False, {"spec": {"suspend": True}}),
            (["resume"], True, {"spec": {"suspend": False}}),
            (["scale", "--replicas=5"], True, {"spec": {"replicas": 5}}),
        ],
    )
    async def test_change_is_a_merge_patch_with_the_uid(
        self, ddp: Ddp, server: FakeApiServer, command: list[str], suspended: bool, patch: Json
    ) -> None:
        server.create("ddpjobs", training(spec={"suspend": suspended}))
        result = await ddp(*command, NAME, "--yes")
        assert result.exit_code == 0, result.output
        request = server.requests[-1]
        assert (request.method, request.headers["Content-Type"]) == ("PATCH", _MERGE_PATCH)
        uid = server.objects[JOB]["metadata"]["uid"]
        assert request.body == {**patch, "metadata": {"uid": uid}}
        assert result.stdout.startswith("ddpjob.ddp-operator.io/digits ")

    async def test_restart(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        assert (await ddp("restart", NAME, "-y")).exit_code == 0
        metadata = server.objects[JOB]["metadata"]
        assert metadata["annotations"][ANNOTATION_RESTART_REQUESTED].startswith("20")

    @pytest.mark.parametrize("kind", ["prod", "secrets", "../../secrets", "ddp/ddp", "jobs", ""])
    async def test_name_behind_another_type_is_refused(
        self, ddp: Ddp, server: FakeApiServer, kind: str
    ) -> None:
        server.create("ddpjobs", training())
        result = await ddp("delete", f"{kind}/{NAME}", "--yes")
        assert result.exit_code == 2
        assert "is not a type of job; give NAME or ddp/NAME" in result.stderr
        namespace = kind if kind.isalpha() else "NAMESPACE"
        assert f"the namespace with -n {namespace}" in result.stderr
        assert server.requests == []

    @pytest.mark.parametrize(
        "kind",
        [
            *("ddp", "ddpjob", "DDPJob", "ddpjobs", "ddpjob.ddp-operator.io"),
            *("ddpjobs.ddp-operator.io", "ddpjobs.v1alpha1.ddp-operator.io"),
        ],
    )
    async def test_type_that_kubectl_accepts_is_accepted(
        self, ddp: Ddp, server: FakeApiServer, kind: str
    ) -> None:
        server.create("ddpjobs", training())
        assert (await ddp("delete", f"{kind}/{NAME}", "--yes")).exit_code == 0
        assert JOB not in server.objects

    async def test_namespace_with_a_slash_is_refused(self, ddp: Ddp, server: FakeApiServer) -> None:
        result = await ddp("list", "--namespace", "namespaces/research")
        assert result.exit_code == 2
        assert "invalid name 'namespaces/research'" in result.stderr
        assert server.requests == []

    async def test_delete(self, ddp: Ddp, server: FakeApiServer) -> None:
        created = server.create("ddpjobs", training())
        result = await ddp("delete", NAME, "--yes")
        assert result.stdout == "ddpjob.ddp-operator.io/digits deleted\n"
        assert JOB not in server.objects
        body = server.requests[-1].body
        assert body["preconditions"] == {"uid": created["metadata"]["uid"]}
        assert body["propagationPolicy"] == "Background"

    @pytest.mark.parametrize("command", ["stop", "restart", "delete"])
    async def test_change_without_terminal_needs_yes(
        self, ddp: Ddp, server: FakeApiServer, command: str
    ) -> None:
        server.create("ddpjobs", training())
        result = await ddp(command, NAME)
        assert result.exit_code == 2
        assert "its 2 pods" in result.stderr
        assert "add --yes" in result.stderr
        assert {request.method for request in server.requests} == {"GET"}

    @pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
    async def test_terminal_asks_for_confirmation(
        self,
        ddp: Ddp,
        server: FakeApiServer,
        monkeypatch: pytest.MonkeyPatch,
        answer: str,
        code: int,
    ) -> None:
        monkeypatch.setattr(app, "may_ask", lambda: True)
        server.create("ddpjobs", training())
        result = await ddp("stop", NAME, input=answer)
        assert result.exit_code == code
        assert bool(server.count("PATCH")) is (code == 0)
        assert ("nothing was changed" in result.stderr) is (code == 1)

    async def test_refused_change_is_not_sent(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.create("ddpjobs", training())
        result = await ddp("scale", NAME, "--replicas=3", "--yes")
        assert result.exit_code == 1
        assert "can change only while the job is stopped" in result.stderr
        assert not server.count("PATCH")

    @pytest.mark.parametrize("replicas", ["0", "10001", "many"])
    async def test_invalid_replicas_are_refused(self, ddp: Ddp, replicas: str) -> None:
        assert (await ddp("scale", NAME, f"--replicas={replicas}")).exit_code == 2


class TestClusters:
    async def test_missing_crd_gets_a_remedy(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.resource_lists.clear()
        server.faults = [Fault("GET", 404, {"message": "not found"}, path_part="?limit")]
        for command in (["list"], ["status", NAME], ["wait", NAME], ["delete", NAME]):
            result = await ddp(*command)
            assert result.exit_code == 1
            assert "the DDPJob CRD is not installed: install the CRD" in result.stderr

    async def test_message_of_the_server_is_shown(self, ddp: Ddp, server: FakeApiServer) -> None:
        server.faults = [Fault("GET", 403, {"message": f"{ESCAPES} is forbidden"})]
        result = await ddp("list")
        assert (result.exit_code, result.stderr) == (1, "Error: red end is forbidden\n")

    async def test_unknown_context(self, ddp: Ddp) -> None:
        result = await ddp("list", "--context", "mars")
        assert result.exit_code == 1
        assert "mars" in result.stderr
        assert len(result.stderr.splitlines()) == 1

    async def test_missing_kubeconfig(self, ddp: Ddp, tmp_path: Path) -> None:
        result = await ddp("list", "--kubeconfig", str(tmp_path / "missing"))
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "no kubeconfig at" in result.stderr

    async def test_deeply_nested_objects_are_shown(self, ddp: Ddp, server: FakeApiServer) -> None:
        job = training()
        deep: Json = {}
        for _ in range(150):
            deep = {"a": deep}
        job["spec"]["template"]["metadata"] = {"annotations": deep}
        server.create("ddpjobs", job)
        assert "digits" in (await ddp("list")).stdout
        assert "Running" in (await ddp("status", NAME)).stdout

    @pytest.mark.parametrize(
        "name", ["Upper", "a?watch=1", "a b", "%2e%2e", "..", "", "-", "x" * 254]
    )
    async def test_invalid_name_is_never_part_of_a_request(
        self, ddp: Ddp, server: FakeApiServer, name: str
    ) -> None:
        for command in (["status", "--", name], ["delete", "--yes", "--", name]):
            result = await ddp(*command)
            assert result.exit_code == 2
            assert "invalid name" in result.stderr
        assert (await ddp("list", f"--namespace={name}")).exit_code == 2
        assert not server.requests
