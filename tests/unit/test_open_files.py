"""The operator raises its limit of open files, and divides them among its connections."""

import logging
import resource
from itertools import pairwise

import pytest
from ddp_operator.engine import open_files
from ddp_operator.engine.open_files import share


@pytest.mark.parametrize("limit", [1, 16, 64, 256, 1024, 4096, 65_536, 2**20])
def test_launchers_get_the_files_that_the_rest_does_not_need(limit: int) -> None:
    polls, assignments = share(limit)
    assert polls >= 1
    assert assignments >= 1
    assert polls + assignments <= max(limit, 2)
    if limit >= 1024:
        assert polls + assignments <= limit - 256


def test_higher_limit_never_means_fewer_connections() -> None:
    shares = [share(limit) for limit in range(1, 8192)]
    for fewer, more in pairwise(shares):
        assert more.polls >= fewer.polls
        assert more.assignments >= fewer.assignments
    assert share(1024) == (512, 256)
    assert share(524_288) == (4096, 1280)


def test_soft_limit_is_raised_to_the_hard_limit(caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with caplog.at_level(logging.INFO):
            open_files.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert f"soft limit {hard}, was 256, hard limit {hard}" in caplog.text
