"""Profiles a rank's next steps with torch's profiler, on a request from outside."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_trainer.telemetry.requests.profile import MAX_BYTES, ProfileFiles

_logger = logging.getLogger(__name__)


class Profiling:
    """Profiles on request; errors go to the requester and do not affect the training."""

    def __init__(self, env: Mapping[str, str], rank: int) -> None:
        """Accept requests for this rank from now on."""
        self._env = env
        self._rank = rank
        self._files = ProfileFiles.from_env(env, rank)
        self._profiler: Any = None
        self._left = 0

    @property
    def rank(self) -> int:
        """Rank under which requests reach this process."""
        return self._rank

    @rank.setter
    def rank(self, rank: int) -> None:
        if rank != self._rank:
            self.close()
            if self._files is not None:
                self._files.look_away()
            self._rank, self._files = rank, ProfileFiles.from_env(self._env, rank)

    @property
    def is_running(self) -> bool:
        """Return whether the present step belongs to a profile."""
        return self._profiler is not None

    def step(self) -> None:
        """Note a complete step; the next one may be the first of a profile."""
        if self._files is None:
            return
        try:
            if self._profiler is not None:
                self._go_on(self._files)
            elif (steps := self._files.take()) is not None:
                self._begin(steps)
        except Exception as error:
            self._give_up(f"torch's profiler: {error}")

    def close(self) -> None:
        """End a profile in progress, because no step follows."""
        if self._profiler is not None:
            self._give_up("the training ended before all of the profile's steps were taken")

    def _begin(self, steps: int) -> None:
        from torch import profiler  # noqa: PLC0415 - slow to import, rarely needed

        _logger.info("profiling the next %d steps on request", steps)
        made = profiler.profile(
            activities=profiler.supported_activities(),  # type: ignore[no-untyped-call]
            schedule=lambda _: profiler.ProfilerAction.RECORD,
        )
        made.start()
        self._profiler, self._left = made, steps

    def _go_on(self, files: ProfileFiles) -> None:
        self._left -= 1
        if self._left > 0:
            self._profiler.step()
            return
        made, self._profiler = self._profiler, None
        made.stop()
        trace = Path(f"{files.trace}.next.gz")  # torch compresses it because of the suffix
        try:
            made.export_chrome_trace(str(trace))
            if trace.stat().st_size > MAX_BYTES:
                files.fail(f"the trace has more than {MAX_BYTES >> 20} MB: request fewer steps")
            else:
                files.finish(trace)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(trace)

    def _give_up(self, problem: str) -> None:
        made, self._profiler = self._profiler, None
        with contextlib.suppress(Exception):
            if made is not None:
                made.stop()
        if self._files is not None:
            with contextlib.suppress(OSError):
                self._files.fail(problem)
