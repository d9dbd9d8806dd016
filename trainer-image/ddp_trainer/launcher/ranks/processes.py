"""A rank's process, from its start to the report of its end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ddp_trainer.exit_codes import ExitCode, of_signal
from ddp_trainer.launcher.output.last_words import UNHANDLED, last_words
from ddp_trainer.launcher.output.rank_output import RankOutput
from ddp_trainer.launcher.verdict import RankEnd, ended_early, settled
from ddp_trainer.telemetry.termination import read_report_file

_logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RankProcess:
    """A rank that runs or is starting."""

    local_rank: int
    rank: int
    """Changes when the pod gets another assignment."""
    report_fd: int
    output: RankOutput

    def end(
        self,
        exit_code: int,
        *,
        script_has_finished: Callable[[], bool],
        ending: bool,
        may_end_early: bool,
    ) -> RankEnd:
        """Return how the process ended, after it was reaped; closes its report and output.

        `script_has_finished`: tells whether a script reported, for all ranks, that it is done.
        `ending`: the launcher is ending the ranks.
        `may_end_early`: an end with exit code 0 before the training is complete is no failure.
        """
        self.output.finish()  # its lines come before the launcher's about its end
        report = read_report_file(self.report_fd)
        os.close(self.report_fd)
        script_finished = script_has_finished()
        finished = report.finished is True or script_finished
        counts = settled(exit_code, finished=finished, said=report.exit_code)
        if counts != exit_code:
            _logger.warning(
                "rank %d ended with exit code %d after its work was done: counted as %d",
                self.rank,
                exit_code,
                counts,
            )
            exit_code = counts
        if not (finished or may_end_early):
            early = ended_early(self.rank, exit_code, report)
            if early is not None:
                report, exit_code = replace(report, error=early), ExitCode.FAILURE
        told = exit_code in (of_signal(signal.SIGTERM), of_signal(signal.SIGKILL))
        return RankEnd(
            rank=self.rank,
            exit_code=exit_code,
            consequence=ending and told,
            report=report,
            words=self._last_words(exit_code),
            script_finished=script_finished,
        )

    def _last_words(self, exit_code: int) -> str:
        """Return the last output of a rank that may have failed."""
        if exit_code in (ExitCode.DONE, ExitCode.STOPPED):
            return ""
        return last_words(self.output.ends(), unhandled=exit_code in UNHANDLED)


def dead_children() -> Iterator[tuple[int, int]]:
    """Reap dead children; yield the process ID and exit code of each."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            yield ended[0], of_signal(-code) if code < 0 else code
