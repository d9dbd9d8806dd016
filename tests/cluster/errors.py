"""The errors a test or a person at the terminal has to tell apart."""

from __future__ import annotations


class ClusterUnavailableError(RuntimeError):
    """This machine cannot have a test cluster; the message is the one-line reason."""


class ClusterError(RuntimeError):
    """A cluster did not start, or did not go away; the message says where to look."""
