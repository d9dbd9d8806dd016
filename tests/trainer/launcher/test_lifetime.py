"""How long a pod waits for the start of its group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from ddp_trainer.exit_codes import ExitCode
from ddp_trainer.launcher.lifetime import WORD_SECONDS, Lifetime, Standing
from ddp_trainer.launcher.supervisor import Supervisor
from ddp_trainer.launcher.verdict import PodResult, judge
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState

from tests.trainer.support.clock import Clock
from tests.trainer.support.pods import contract

_STEP_SECONDS = 60.0
HELD = {
    **contract(node_rank=1, nodes=2),
    "DDP_GENERATION": "1",
    "DDP_STATUS_PORT": "28737",
    "DDP_HELD": "1",
}


@dataclass
class IdleSupervisor:
    """Has no ranks. Each wait takes a minute, at the end of which something may happen."""

    clock: Clock
    world: GroupState
    operator_calls_until: float = 0.0
    stops_at: float = float("inf")
    has_joined = is_warm = False

    @property
    def told_to_stop(self) -> bool:
        return self.clock.now >= self.stops_at

    def warm_up(self) -> None:
        """Nothing to do."""

    def idle(self, *, until: float) -> None:
        assert until > 0
        self.clock.now += _STEP_SECONDS
        if self.clock.now <= self.operator_calls_until:
            self.world.news(after=0, wait_seconds=0)


def wait(env: dict[str, str], **supervisor: Any) -> tuple[PodResult, float]:
    """Run a pod to its end; return its verdict, and how long it waited."""
    clock = Clock(0.0)
    environment = RankEnvironment(env)
    world = GroupState(environment.initial, clock=clock)
    lifetime = Lifetime(
        cast(Supervisor, IdleSupervisor(clock, world, **supervisor)),
        world,
        environment,
        judge=judge,
        assignment_file=None,
        status_file=None,
        of_rank_0={},
        standing=Standing(pod="j-0-1-r1", scope="InPlace"),
    )
    return lifetime.run(), clock.now


@pytest.mark.parametrize("called", [0.0, 2000 * _STEP_SECONDS])
def test_held_pod_ends_once_the_operator_is_silent_for_long(
    called: float, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, seconds = wait(HELD, operator_calls_until=called)
    assert WORD_SECONDS <= seconds - called <= WORD_SECONDS + 2 * _STEP_SECONDS
    assert verdict.exit_code == ExitCode.LOST_PEER
    warnings = [line for line in capsys.readouterr().out.splitlines() if "no word" in line]
    assert len(warnings) == 1
    assert warnings[0].endswith("no word from the operator for 300 s; this pod ends after 3600 s")
    assert "check that the operator runs" in verdict.report.headline


def test_spare_waits_without_a_limit() -> None:
    of_a_member = ("DDP_HELD", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "WORLD_SIZE")
    spare = {name: value for name, value in HELD.items() if name not in of_a_member}
    verdict, seconds = wait(spare, stops_at=10 * WORD_SECONDS)
    assert (verdict.exit_code, seconds) == (ExitCode.STOPPED, 10 * WORD_SECONDS)


def test_pod_waits_as_long_as_its_group_is_assembled_again_and_again() -> None:
    """Each assignment is a word, also one that says to wait on."""
    clock = Clock(0.0)
    world = GroupState(RankEnvironment(HELD).initial, clock=clock)
    clock.now = 3000.0
    assert world.accept(replace(world.initial, generation=2))
    clock.now = 3300.0
    assert world.silence_seconds == 300.0
