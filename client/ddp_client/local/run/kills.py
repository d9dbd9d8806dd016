"""Kills a rank on purpose, as `--kill-rank` requests."""

import re
from dataclasses import dataclass

_SYNTAX = re.compile(r"(?P<rank>\d+)@(?:(?P<seconds>\d+(?:\.\d+)?)s|step(?P<step>\d+))")


@dataclass(frozen=True, kw_only=True)
class KillRequest:
    """Kill one rank's pod once, a time after the job became Running or at a step of training."""

    rank: int
    after_seconds: float | None = None
    at_step: int | None = None

    @classmethod
    def parse(cls, text: str) -> "KillRequest":
        """Read `1@5s` or `1@step100`.

        Raises:
            ValueError: the text has neither form.
        """
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not RANK@SECONDSs or RANK@stepSTEP, such as 1@5s or 1@step100"
            )
        seconds, step = match["seconds"], match["step"]
        return cls(
            rank=int(match["rank"]),
            after_seconds=float(seconds) if seconds else None,
            at_step=int(step) if step else None,
        )

    def __str__(self) -> str:
        when = f"{self.after_seconds:g}s" if self.at_step is None else f"step{self.at_step}"
        return f"{self.rank}@{when}"
