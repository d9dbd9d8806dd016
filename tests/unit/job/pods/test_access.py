"""Tokens of jobs: whose is whose, and who can know."""

import hashlib
import hmac

from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.access import Access
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import SentToken

from tests.unit.job.builders import fresh_job

ACCESS = Access(secret=b"s" * 32)


def test_a_token_is_the_jobs_and_the_operators() -> None:
    token = ACCESS.token_of("7d1c")
    assert token == hmac.new(b"s" * 32, b"7d1c", hashlib.sha256).hexdigest()
    assert token == Access(secret=b"s" * 32).token_of("7d1c"), "another replica, another life"
    assert token != ACCESS.token_of("7d1d")
    assert token != Access(secret=b"t" * 32).token_of("7d1c")


def test_who_knows_no_signature_is_sent_the_token() -> None:
    token = ACCESS.token_of("7d1c")
    assert not isinstance(ACCESS.token_for("7d1c", signs=True), SentToken)
    assert isinstance(ACCESS.token_for("7d1c", signs=False), SentToken)
    assert {ACCESS.token_for("7d1c", signs=signs) for signs in (True, False)} == {token}


def test_the_secret_is_not_printed() -> None:
    assert "sss" not in repr(ACCESS)


def test_the_trainer_alone_is_told_the_token() -> None:
    told = manifests.pod(fresh_job(), Identity(0, 0), token="of-the-job")
    assert {"name": "DDP_TOKEN", "value": "of-the-job"} in told["spec"]["containers"][0]["env"]
    untold = manifests.pod(fresh_job(), Identity(0, 0))
    assert str(told).count("of-the-job") == 1
    assert "DDP_TOKEN" not in str(untold)
