import base64
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from ddp_client.pod_security import PodSecurity
from ddp_client.submit import CodeFolder, JobRequest, JobRequestError, Mount, admitted, job_manifest
from ddp_client.submit import code as code_module
from ddp_client.submit.code import code_volume, code_volume_of
from ddp_client.submit.job import parsed
from ddp_operator.api.code import Code, takes_code
from ddp_protocol import code_archive
from ddp_protocol.code_archive import digest_of
from ddp_protocol.code_packing import make, pack, reference_to

from tests.unit.submit.test_job import REQUEST

FILES = {"train.py": (b"print(1)\n", False), "requirements.txt": (b"einops\n", False)}
FOLDER = CodeFolder(FILES, token="a1b2")
WITH_CODE = replace(REQUEST, code=FOLDER)
CODE_ID = f"{digest_of(make(FILES))}-a1b2"


def pod_of(request: JobRequest) -> dict[str, Any]:
    pod: dict[str, Any] = job_manifest(request)["spec"]["template"]["spec"]
    return pod


def env(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", ())}


def test_command_runs_in_the_folder() -> None:
    job = job_manifest(WITH_CODE)
    assert job["metadata"]["annotations"] == {"ddp-operator.io/code": f"{CODE_ID}/1"}
    pod = job["spec"]["template"]["spec"]
    [trainer], [unpacks] = pod["containers"], pod["initContainers"]
    assert (trainer["command"], trainer["workingDir"]) == (
        ["python", "train.py", "--lr", "1"],
        "/ddp-code/work",
    )
    assert env(trainer) == {"DDP_CODE_DIR": "/ddp-code"}
    assert (unpacks["image"], unpacks["command"]) == (
        trainer["image"],
        ["python", "-I", "/ddp-code-parts/unpack.py"],
    )
    assert pod["volumes"] == [
        {"name": "ddp-code", "emptyDir": {}},
        {
            "name": "ddp-code-parts",
            "projected": {"sources": [{"configMap": {"name": f"resnet-code-{CODE_ID}-0"}}]},
        },
    ]


def test_parts_together_are_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "PART_BYTES", 50)
    made = CodeFolder(FILES, token="a1b2").config_maps("resnet")
    names = [one["metadata"]["name"] for one in made]
    assert names == [f"resnet-code-{CODE_ID}-{number}" for number in range(len(made))]
    parts = [one["binaryData"][f"part-{number}"] for number, one in enumerate(made)]
    assert b"".join(map(base64.b64decode, parts)) == pack(make(FILES))
    assert made[0]["data"]["id"] == CODE_ID
    compile(made[0]["data"]["unpack.py"], "unpack.py", "exec")
    assert all(one["immutable"] for one in made)
    assert ["data" in one for one in made] == [True] + [False] * (len(made) - 1)


def test_part_and_program_fit_in_a_config_map() -> None:
    program = len(FOLDER.config_maps("resnet")[0]["data"]["unpack.py"].encode())
    assert code_archive.PART_BYTES + program < 1024 * 1024


def test_too_large_a_folder_names_its_largest_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "MAX_PACKED_BYTES", 100)
    files = {**FILES, "data/a": (bytes(3 * 2**20), False), "data/b": (bytes(2**20), False)}
    largest = r"largest: data 4\.0 MiB, .*\.gitignore; with a volume .*code-volume"
    with pytest.raises(JobRequestError, match=largest):
        job_manifest(replace(REQUEST, code=CodeFolder(files, token="a1b2")))
    monkeypatch.setattr(code_archive, "MAX_BYTES", 10)
    with pytest.raises(JobRequestError, match="at most 10 can be sent"):
        job_manifest(replace(REQUEST, code=CodeFolder(FILES, token="a1b2")))


CLAIM = code_volume("pvc/team")


def test_code_too_large_for_config_maps_is_stored_in_the_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = replace(FOLDER, volume=CLAIM)
    small = job_manifest(replace(REQUEST, code=code))
    assert not code.is_stored
    monkeypatch.setattr(code_module, "MAX_PACKED_BYTES", 100)
    code = replace(FOLDER, volume=CLAIM)
    large = job_manifest(replace(REQUEST, code=code))
    assert code.is_stored
    assert large == small, "the volume is mounted for later code, too"
    [config_map] = code.config_maps("resnet")
    assert base64.b64decode(config_map["binaryData"]["part-0"]) == reference_to(make(FILES))
    assert config_map["metadata"]["name"] == f"resnet-code-{CODE_ID}-0"
    pod = large["spec"]["template"]["spec"]
    for container in (*pod["containers"], *pod["initContainers"]):
        [mount] = [one for one in container["volumeMounts"] if one["name"] == "ddp-code-store"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/ddp-code/store", True)
    assert {"name": "ddp-code-store", **CLAIM.source} in pod["volumes"]
    found = code_volume_of(large)
    assert found is not None
    assert found.source == CLAIM.source
    assert code_volume_of(job_manifest(WITH_CODE)) is None


def test_claim_that_the_job_mounts_already_is_one_volume() -> None:
    code = replace(FOLDER, volume=CLAIM)
    mounts = [Mount.parse("pvc/other:/x"), Mount.parse("pvc/team:/data")]
    job = job_manifest(replace(REQUEST, code=code, mounts=mounts))
    pod = job["spec"]["template"]["spec"]
    [volume] = [v for v in pod["volumes"] if v.items() >= CLAIM.source.items()]
    for container in (*pod["containers"], *pod["initContainers"]):
        paths = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == volume["name"]]
        assert paths == ["/data", "/ddp-code/store"]
    found = code_volume_of(job)
    assert found is not None
    assert found.source == CLAIM.source


def test_code_of_many_bytes_that_compress_well_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "MAX_BYTES", 10)
    assert replace(FOLDER, volume=CLAIM).is_stored


def test_code_larger_than_a_volume_may_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "MAX_STORED_PACKED_BYTES", 100)
    with pytest.raises(JobRequestError, match=r"largest: .*\.gitignore$"):
        job_manifest(replace(REQUEST, code=replace(FOLDER, volume=CLAIM)))
    monkeypatch.setattr(code_module, "MAX_STORED_BYTES", 10)
    with pytest.raises(JobRequestError, match="at most 10 can be sent"):
        job_manifest(replace(REQUEST, code=replace(FOLDER, volume=CLAIM)))


def test_bucket_as_volume_annotates_the_pods() -> None:
    code = replace(FOLDER, volume=code_volume("gs://team-code/"))
    template = job_manifest(replace(REQUEST, code=code))["spec"]["template"]
    assert template["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
    [volume] = [one for one in template["spec"]["volumes"] if one["name"] == "ddp-code-store"]
    assert volume["csi"]["volumeAttributes"] == {"bucketName": "team-code"}


@pytest.mark.parametrize("text", ["team", "/disk", "secret/x", "pvc/A", "pvc/a:b", "pvc/", "gs://"])
def test_volume_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(JobRequestError, match="code-volume"):
        code_volume(text)


def test_packages_are_installed_before_the_start() -> None:
    code = FOLDER.with_requirements("requirements.txt", b"")
    claim = Mount.parse("pvc/team:/data")
    request = replace(WITH_CODE, code=code, mounts=[claim], env={"PIP_INDEX_URL": "https://i"})
    pod = pod_of(request)
    [trainer], [unpacks] = pod["containers"], pod["initContainers"]
    assert unpacks["command"][-1] == "requirements.txt"
    expected = {
        "PIP_INDEX_URL": "https://i",
        "PIP_CACHE_DIR": "/data/.cache/pip",
        "PYTHONPATH": "/ddp-code/packages/site",
        "DDP_REQUIREMENTS": "requirements.txt@" + sha256(b"einops\n").hexdigest()[:12],
    }
    assert env(unpacks) == expected
    assert env(trainer) == {**expected, "DDP_CODE_DIR": "/ddp-code"}
    assert "/data" in [mount["mountPath"] for mount in unpacks["volumeMounts"]]
    given = {"PIP_CACHE_DIR": "/mine", "PYTHONPATH": "/lib"}
    own = env(pod_of(replace(request, env=given))["containers"][0])
    assert own["PIP_CACHE_DIR"] == "/mine"
    assert own["PYTHONPATH"] == "/ddp-code/packages/site:/lib"
    unkept = pod_of(replace(request, mounts=[Mount.parse("pvc/team:/data:ro")]))
    assert "PIP_CACHE_DIR" not in env(unkept["containers"][0])


def test_requirements_from_elsewhere_travel_alone() -> None:
    code = CodeFolder({}, token="a1b2", is_workdir=False).with_requirements("", b"einops\n")
    request = replace(REQUEST, code=code)
    pod = pod_of(request)
    assert pod["initContainers"][0]["command"][-1] in code.files
    assert "workingDir" not in pod["containers"][0]
    assert "annotations" not in job_manifest(request)["metadata"]


@pytest.mark.parametrize("security", [PodSecurity("restricted"), None])
def test_init_container_is_as_unprivileged_as_the_trainer(security: PodSecurity | None) -> None:
    request = WITH_CODE if security else replace(WITH_CODE, user=1000)
    pod = admitted(job_manifest(request), security)["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["securityContext"] == pod["containers"][0]["securityContext"]


def test_annotation_is_read_as_it_is_written() -> None:
    code = Code("3f2a9c1b5d6e-a1b2", 8)
    assert Code.parse(str(code)) == code
    bad = ("", "x", "3f2a9c1b5d6e-a1b2", "3f2a9c1b5d6e-a1b2/9", "3f2a9c1b5d6e-a1b2/1 ", "../x/1")
    assert [Code.parse(text) for text in bad] == [None] * len(bad)


def test_template_that_takes_code() -> None:
    assert takes_code(parsed(job_manifest(WITH_CODE)).spec)
    assert not takes_code(parsed(job_manifest(REQUEST)).spec)
