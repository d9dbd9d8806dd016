"""The choice of a cluster, its names, and the keys of what is built once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from dnslib import QTYPE, RCODE, DNSRecord

from tests.cluster import provider
from tests.cluster.dns import ClusterResolver, records
from tests.cluster.errors import ClusterUnavailableError
from tests.cluster.preparation import images, kueue, packages
from tests.cluster.preparation.binaries import API_SERVER, KubeBinaries, find
from tests.cluster.preparation.steps import Stage, steps
from tests.cluster.processes import ProcessId
from tests.cluster.state import Instance


def test_a_folder_without_kubernetes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBE_BIN_DIR", str(tmp_path))
    with pytest.raises(ClusterUnavailableError, match="holds no kube-apiserver"):
        find(API_SERVER)


def test_given_programs_report_their_version(tmp_path: Path) -> None:
    server = tmp_path / "kube-apiserver"
    server.write_text("#!/bin/sh\necho Kubernetes v1.37.2-gke.2097000\n")
    server.chmod(0o755)
    assert KubeBinaries(tmp_path).minor_version() == 37
    other = tmp_path / "other/kube-apiserver"
    other.parent.mkdir()
    other.symlink_to("/bin/true")
    with pytest.raises(ClusterUnavailableError, match="names no release"):
        KubeBinaries(other.parent).minor_version()


def test_given_kueue_is_used_if_its_folder_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUEUE_DIR", str(tmp_path))
    (tmp_path / "kueue").touch()
    with pytest.raises(ClusterUnavailableError, match="holds no config/components"):
        kueue.find()
    (tmp_path / "config/components").mkdir(parents=True)
    assert kueue.find() == tmp_path / "kueue"
    assert kueue.manifests() == tmp_path / "config/components"
    assert steps([Stage.KUEUE]) == [], "nothing is built"


def test_given_cluster_comes_before_kind_and_kind_before_a_node() -> None:
    assert provider.choose(kubeconfig="/some/config", kind_usable=True) == "existing"
    assert provider.choose(kubeconfig=None, kind_usable=True) == "kind"
    assert provider.choose(kubeconfig="", kind_usable=False) == "node"


def test_a_given_kubeconfig_has_to_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "missing"
    monkeypatch.setenv(provider.KUBECONFIG_VARIABLE, str(path))
    with pytest.raises(ClusterUnavailableError, match="is not a file"):
        provider.up("test-existing")
    path.touch()
    assert provider.up("test-existing").kubeconfig == path


def test_given_cluster_is_used_with_images_that_all_its_nodes_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = ["example/one:dev", "example/one:1"], ["example/other:1"]
    reported: list[list[list[str] | None]] = [[one, None, other, ["example/other:dev"]], [one]]
    nodes = [{"status": {"images": [{"names": names} for names in node]}} for node in reported]
    answer = tmp_path / "answer"
    answer.write_text(json.dumps({"items": nodes}))
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\ncat {answer}\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("KUBE_BIN_DIR", str(tmp_path))
    monkeypatch.setenv(provider.KUBECONFIG_VARIABLE, str(answer))
    with provider.cluster("test-existing") as given:
        assert given.images() == set(one)
        images.load(images.BuiltImage(tmp_path / "one-1.tar", *one), given)
        with pytest.raises(ClusterUnavailableError, match=r"no other .*: load .*/other-1.tar on"):
            images.load(
                images.BuiltImage(tmp_path / "other-1.tar", "example/other:dev", *other), given
            )
        with pytest.raises(ClusterUnavailableError, match="other:dev for another image"):
            given.tag_image("example/other:1", as_name="example/other:dev")


def test_two_processes_that_start_a_cluster_at_once_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: dict[str, Instance] = {}
    here, elsewhere = ProcessId.current(), ProcessId(1, "another")

    def start(name: str, *, owner: ProcessId) -> provider.Cluster:
        owner = owner if known else elsewhere
        known[name] = Instance(name, "node", tmp_path, tmp_path, owner=owner)
        return cast(provider.Cluster, name)

    monkeypatch.delenv(provider.KUBECONFIG_VARIABLE, raising=False)
    monkeypatch.setattr(provider, "sweep", lambda: None)
    monkeypatch.setattr(provider, "up", start)
    monkeypatch.setattr(provider, "instances", known.values)
    monkeypatch.setattr(provider, "remove_named", known.pop)
    with provider.cluster("pods") as running:
        assert {name: each.owner for name, each in known.items()} == {
            "pods": elsewhere,
            str(running): here,
        }
    assert known.keys() == {"pods"}


def test_missing_packages_are_named(tmp_path: Path) -> None:
    here = tmp_path / "program"
    here.touch()
    wanted = {str(here): "one", str(tmp_path / "absent"): "two", "no-such-program": "three"}
    assert packages.missing(wanted) == ["three", "two"]


ENDPOINTS = {
    "metadata": {"name": "job", "namespace": "team", "uid": "1"},
    "subsets": [
        {"addresses": [{"ip": "10.0.0.1", "hostname": "job-0"}, {"ip": "10.0.0.2"}]},
        {"notReadyAddresses": [{"ip": "10.0.0.3", "hostname": "job-2"}]},
    ],
}


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        ("job-0.job.team.svc.cluster.local.", "A", ["10.0.0.1"]),
        ("JOB.team.svc.cluster.local.", "A", ["10.0.0.1", "10.0.0.2"]),
        # The name exists, but has no address of the other family: not the same as no such name.
        ("job-0.job.team.svc.cluster.local.", "AAAA", []),
        ("job-1.job.team.svc.cluster.local.", "A", None),
        ("job-0.job.team.svc.cluster.local.other.svc.cluster.local.", "A", None),
        ("kubernetes.default.svc.cluster.local.", "A", ["10.96.0.1"]),
        ("example.com.", "A", None),
        # Its pod is not ready, and the Service publishes no such addresses.
        ("job-2.job.team.svc.cluster.local.", "A", None),
    ],
)
def test_dns_answers(name: str, kind: str, answer: list[str] | None) -> None:
    resolver = ClusterResolver()
    resolver.by_object["1"] = records(ENDPOINTS)
    reply = resolver.resolve(DNSRecord.question(name, kind), None)
    assert [str(record.rdata) for record in reply.rr] == (answer or [])
    expected = RCODE.NXDOMAIN if answer is None else RCODE.NOERROR
    assert reply.header.rcode == expected
    # A miss may be remembered for a second at most: the pod may be about to appear.
    assert [record.ttl for record in reply.auth] == ([1] if answer is None else [])
    assert all(record.rtype == QTYPE.SOA for record in reply.auth)


def test_image_hash_follows_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "REPOSITORY", tmp_path)
    sources = tmp_path / "sources"
    (sources / "package/__pycache__").mkdir(parents=True)
    for name in ("Dockerfile", "requirements.txt", "sources/package/module.py"):
        (tmp_path / name).write_text("1")
    image = images.ImageSource(
        "name", tmp_path / "Dockerfile", tmp_path / "requirements.txt", sources
    )
    before = images.content_hash(image.files(), "base")
    (sources / "package/__pycache__/module.pyc").write_text("compiled")
    assert images.content_hash(image.files(), "base") == before
    assert images.content_hash(image.files(), "another base") != before
    for changed in ("Dockerfile", "requirements.txt", "sources/package/module.py"):
        (tmp_path / changed).write_text("2")
        after = images.content_hash(image.files(), "base")
        assert after != before
        before = after
