"""Tokens of jobs, and the Secrets that contain them."""

import base64
import hashlib
import hmac
from dataclasses import replace
from typing import Final

import pytest
from ddp_operator.engine.tokens.access import Access
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.access import SecretKey
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key, SentToken, TokenSource

from tests.unit.job.builders import fresh_job

ACCESS: Final = Access(secret=b"s" * 32)
SECRET: Final = TokenSource.SECRET
VARIABLE: Final = TokenSource.VARIABLE


def token_of(
    uid: str = "7d1c",
    *,
    access: Access = ACCESS,
    namespace: str = "research",
    source: TokenSource = VARIABLE,
) -> str:
    return access.token_of(namespace, uid, source)


def test_token_depends_on_the_job_and_the_secret_only() -> None:
    assert token_of() == hmac.new(b"s" * 32, b"7d1c", hashlib.sha256).hexdigest()
    assert token_of() == token_of(access=Access(secret=b"s" * 32)), "another replica"
    assert token_of() == token_of(namespace="other")
    assert token_of() != token_of("7d1d")
    assert token_of() != token_of(access=Access(secret=b"t" * 32))


def test_pod_without_signatures_receives_the_token_itself() -> None:
    assert not isinstance(token_of(), SentToken)
    assert isinstance(token_of(source=TokenSource.SENT), SentToken)
    assert token_of(source=TokenSource.SENT) == token_of()


def test_secret_has_the_tokens_of_all_jobs_in_its_namespace() -> None:
    manifest = ACCESS.secret_manifest("research")
    assert manifest["immutable"] is True
    assert len(manifest["data"]) == len(set(manifest["data"].values())) == 256
    uids = [f"job-{number}" for number in range(100)]
    for uid in uids:
        reference = ACCESS.variable("research", uid, SECRET)
        assert isinstance(reference, SecretKey)
        assert reference.secret == manifest["metadata"]["name"]
        stored = base64.b64decode(manifest["data"][reference.key]).decode()
        assert stored == token_of(uid, source=SECRET)
    assert len({token_of(uid, source=SECRET) for uid in uids}) > 70, "few jobs share a token"


def test_secrets_of_namespaces_and_operators_differ() -> None:
    others = (ACCESS, "other"), (Access(secret=b"t" * 32), "research")
    own = ACCESS.secret_manifest("research")
    for access, namespace in others:
        other = access.secret_manifest(namespace)
        assert other["metadata"]["name"] != own["metadata"]["name"]
        assert not set(other["data"].values()) & set(own["data"].values())
    assert own == Access(secret=b"s" * 32).secret_manifest("research")


@pytest.mark.parametrize(
    ("existing", "has_secrets", "expected"),
    [
        ((), True, SECRET),
        ((), False, VARIABLE),
        ((VARIABLE,), True, VARIABLE),
        ((TokenSource.SENT,), True, VARIABLE),
        ((SECRET,), False, SECRET),
    ],
)
def test_all_pods_of_an_attempt_have_the_same_token_source(
    existing: tuple[TokenSource, ...], has_secrets: bool, expected: TokenSource
) -> None:
    access = replace(ACCESS, has_secrets=has_secrets)
    pods = [replace(fresh_pod(), token_source=source) for source in existing]
    foreign = [replace(fresh_pod(owner_uid="x"), token_source=each) for each in TokenSource]
    earlier = [replace(fresh_pod(attempt=0), token_source=each) for each in TokenSource]
    source = access.source_for("uid", 1, [*foreign, *earlier, *pods])
    assert source is expected


def fresh_pod(*, attempt: int = 1, owner_uid: str = "uid") -> PodState:
    key, identity = Key("research", "job-1-0"), Identity(0, attempt)
    return PodState(key, owner_uid, identity, spec_hash="", phase="Running")


def test_repr_hides_the_secret() -> None:
    assert "sss" not in repr(ACCESS)


def test_only_the_trainer_container_receives_the_token() -> None:
    visible = manifests.pod(fresh_job(), Identity(0, 0), token="of-the-job")
    assert {"name": "DDP_TOKEN", "value": "of-the-job"} in visible["spec"]["containers"][0]["env"]
    hidden = manifests.pod(fresh_job(), Identity(0, 0), token=SecretKey("tokens", "7d"))
    [variable] = [
        entry for entry in hidden["spec"]["containers"][0]["env"] if entry["name"] == "DDP_TOKEN"
    ]
    assert variable == {
        "name": "DDP_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "7d"}},
    }
    sources = [project(pod).token_source for pod in (visible, hidden)]
    assert sources == [VARIABLE, SECRET]
    without = manifests.pod(fresh_job(), Identity(0, 0))
    assert str(visible).count("of-the-job") == 1
    assert "DDP_TOKEN" not in str(without)
