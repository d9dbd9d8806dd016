"""The operator works with as many open files as it may have: it asks for more, and uses what it
gets.
"""

from itertools import pairwise

import pytest
from ddp_operator.open_files import share


@pytest.mark.parametrize("limit", [1, 16, 64, 256, 1024, 4096, 65_536, 2**20])
def test_launchers_get_what_all_else_leaves(limit: int) -> None:
    polls, assignments = share(limit)
    assert polls >= 1
    assert assignments >= 1
    assert polls + assignments <= max(limit, 2)
    if limit >= 1024:
        assert polls + assignments <= limit - 256


def test_more_files_are_never_fewer_launchers() -> None:
    shares = [share(limit) for limit in range(1, 8192)]
    for fewer, more in pairwise(shares):
        assert more.polls >= fewer.polls
        assert more.assignments >= fewer.assignments
    assert share(1024) == (512, 256)
    assert share(524_288) == (4096, 1280)
