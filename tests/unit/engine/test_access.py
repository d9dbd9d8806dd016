"""Tokens of jobs, and the Secrets that contain them."""

import base64
import hashlib
import hmac
from dataclasses import replace
from typing import Final

import pytest
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.access import PodToken
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key

from tests.unit.job.builders import UID, fresh_job

OLD: Final = "20260101T000000Z"
NEW: Final = "20261129T073000Z"
ACCESS: Final = Access(keys={OLD: b"s" * 32})
ROTATED: Final = Access(keys={NEW: b"t" * 32, OLD: b"s" * 32})


def test_token_depends_on_the_job_and_the_key_only() -> None:
    token = ACCESS.token_of("7d1c", OLD)
    assert token == hmac.new(b"s" * 32, b"7d1c", hashlib.sha256).hexdigest()
    assert token == ROTATED.token_of("7d1c", OLD)
    others = {ACCESS.token_of("7d1d", OLD), ROTATED.token_of("7d1c", NEW)}
    assert len({token, *others}) == 3


def test_removed_key_is_replaced_by_the_newest() -> None:
    without = Access(keys={NEW: b"t" * 32})
    for removed in (OLD, ""):
        assert without.token_of("7d1c", removed) == ROTATED.token_of("7d1c", NEW)


def test_each_job_has_a_secret_that_it_owns() -> None:
    job = fresh_job()
    manifest = ACCESS.secret_manifest(job, OLD)
    metadata = manifest["metadata"]
    assert manifest["immutable"] is True
    [stored] = manifest["data"].values()
    assert base64.b64decode(stored).decode() == ACCESS.token_of(UID, OLD)
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DDPJob", UID, True)
    assert (metadata["namespace"], metadata["name"]) == (job.namespace, name_of(ACCESS, UID, OLD))
    names = {name_of(ACCESS, str(number), OLD) for number in range(1000)}
    assert len(names) == 1000
    assert name_of(ROTATED, UID, NEW) != name_of(ROTATED, UID, OLD) == name_of(ACCESS, UID, OLD)


def name_of(access: Access, uid: str, key: str) -> str:
    return access.secret_name(uid, key)


@pytest.mark.parametrize(
    ("existing", "expected"),
    [((), NEW), ((OLD,), OLD), ((NEW,), NEW), (("removed",), NEW), (("removed", OLD), OLD)],
)
def test_all_pods_of_an_attempt_have_the_same_key(existing: tuple[str, ...], expected: str) -> None:
    pods = [replace(fresh_pod(), token_key=key) for key in existing]
    foreign = [replace(fresh_pod(owner_uid="x"), token_key=OLD)]
    earlier = [replace(fresh_pod(attempt=0), token_key=OLD)]
    assert ROTATED.key_for("uid", 1, [*foreign, *earlier, *pods]) == expected


def fresh_pod(*, attempt: int = 1, owner_uid: str = "uid") -> PodState:
    key, identity = Key("research", "job-1-0"), Identity(0, attempt)
    return PodState(key, owner_uid, identity, spec_hash="", phase="Running")


def test_repr_hides_keys_and_tokens() -> None:
    assert "sss" not in repr(ACCESS)
    assert ACCESS.token_of("uid", OLD) not in repr(ACCESS.pod_token("uid", OLD))


def test_only_the_trainer_container_receives_the_token() -> None:
    plain, secret = PodToken(key=OLD, plain="of-the-job"), PodToken(key=OLD, secret="tokens")
    visible = manifests.pod(fresh_job(), Identity(0, 0), token=plain)
    assert {"name": "DDP_TOKEN", "value": "of-the-job"} in visible["spec"]["containers"][0]["env"]
    hidden = manifests.pod(fresh_job(), Identity(0, 0), token=secret)
    [variable] = [
        entry for entry in hidden["spec"]["containers"][0]["env"] if entry["name"] == "DDP_TOKEN"
    ]
    assert variable == {
        "name": "DDP_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "token"}},
    }
    assert [project(pod).token_key for pod in (visible, hidden)] == [OLD, OLD]
    without = manifests.pod(fresh_job(), Identity(0, 0))
    assert str(visible).count("of-the-job") == 1
    assert "DDP_TOKEN" not in str(without)
