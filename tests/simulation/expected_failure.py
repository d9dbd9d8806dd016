"""The mark of tests that show a known fault of the operator."""

import pytest


def fails(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that fails until the operator is fixed.

    Only a failed assertion is expected, and a test that passes is a failure.
    """
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
