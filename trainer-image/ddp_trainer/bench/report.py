"""The output of the benchmark: a table, JSON for programs, and a verdict in both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ddp_trainer.bench.links import Member, Step, accuse
from ddp_trainer.bench.measure import Measurement, Unsupported
from ddp_trainer.exit_codes import ExitCode

HEADER = (
    f"# {'operation':<14} {'size':>12} {'count':>12} {'type':>8} {'time':>12} {'algbw':>9} "
    f"{'busbw':>9} {'wrong':>7}\n"
    f"# {'':<14} {'(B)':>12} {'(numbers)':>12} {'':>8} {'(us)':>12} {'(GB/s)':>9} {'(GB/s)':>9}"
)


def row(result: Measurement | Unsupported) -> str:
    """Return one line of the table."""
    if isinstance(result, Unsupported):
        return f"  {result.operation:<14} not supported by this backend: {result.reason}"
    return (
        f"  {result.operation:<14} {result.size_bytes:>12} {result.count:>12} {result.dtype:>8} "
        f"{result.time_us:>12.1f} {result.algbw:>9.3f} {result.busbw:>9.3f} {result.wrong:>7}"
    )


@dataclass(frozen=True, kw_only=True)
class Report:
    """All measurements and the verdict."""

    backend: str
    min_busbw: float | None
    members: Sequence[Member]
    ring: Sequence[Step]
    """Empty if not requested."""
    measurements: Sequence[Measurement]
    unsupported: Sequence[Unsupported]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code; the same on all ranks."""
        if any(one.wrong for one in self.measurements):
            return ExitCode.FAILURE
        return ExitCode.SLOW_NETWORK if self._too_slow() else ExitCode.DONE

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        wrong = [one for one in self.measurements if one.wrong]
        if wrong:
            return (
                f"WRONG RESULTS: {wrong[0].operation} of {wrong[0].size_bytes} bytes gave "
                f"{wrong[0].wrong} wrong numbers: do not train on these nodes"
            )
        slow = self._too_slow()
        if slow:
            reached = ", ".join(f"{name} {busbw:.3g}" for name, busbw in slow.items())
            return (
                f"TOO SLOW: {accuse(self.members)}; bus bandwidth in GB/s, with --min-busbw "
                f"{self.min_busbw:g}: {reached}"
            )
        return f"all results are correct; {accuse(self.members)}"

    def closing(self) -> str:
        """Return the lines below the table: each rank's best link, the ring, and the verdict."""
        links = [f"{member}: {member.link_gbps:.3f} GB/s each way" for member in self.members]
        lines = ["ranks in pairs:", *links]
        if self.ring:
            named = {member.rank: member for member in self.members}
            lines += ["ranks in a ring:", *(f"{named[step.rank]} {step}" for step in self.ring)]
        return "\n".join(f"# {line}" for line in [*lines, self.verdict])

    def to_json(self) -> str:
        """Return everything as JSON; GB/s are 10^9 bytes per second."""
        values = {**asdict(self), "exit_code": int(self.exit_code), "verdict": self.verdict}
        return json.dumps(values, indent=2) + "\n"

    def _too_slow(self) -> dict[str, float]:
        """Return the best value of each operation that never reaches the minimum bandwidth."""
        best: dict[str, float] = {}
        for one in self.measurements:
            best[one.operation] = max(best.get(one.operation, 0.0), one.busbw)
        return {name: busbw for name, busbw in best.items() if busbw < (self.min_busbw or 0.0)}
