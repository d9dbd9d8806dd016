"""Requests that a job does not allow."""


class RefusedError(Exception):
    """The job does not allow the request, or it would have no effect; says what to do."""
