"""Faults of ranks at chosen points of their run, one after another.

The plan is in the environment. A fault waits until all faults before it have happened, and then
until its rank reaches its point. The fault hits the process that is this rank then; its successor
is not hit. Most faults kill the process; devices add others.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.trainer.support import faults

PLAN_VARIABLE = "TEST_DEATHS"
FOLDER_VARIABLE = "TEST_DEATHS_FOLDER"

IN_A_STEP = (
    "vote",
    "backward",
    "gate",
    "before the optimizer's step",
    "within the optimizer's step",
    "after the optimizer's step",
)
IN_A_TURN = ("backward", "gate", "within the optimizer's step", "after a turn")
"""Points of one optimizer of several."""
WHILE_FORMING = ("rendezvous", "connection", "the state's transfer")
ELSEWHERE = ("evaluation", "within a save")


@dataclass(frozen=True, kw_only=True)
class FaultAt:
    rank: int
    point: str
    step: int = 0
    """The first step that may be hit; 0: any. The group must have formed and taken a step since the
    previous fault, so that all its ranks have the run's state."""
    turn: int = 0
    """The first turn of the step that may be hit, if its optimizers take turns."""
    action: str = "kill"
    """One of ACTIONS."""
    others_at: str = ""
    """A point of the same step that other ranks reach first."""
    others: int = 0
    """Number of these ranks; 0: all."""


_OTHERS_SECONDS = 60.0

_SHOWN_VISITS = 5
_SHOWN_CHARACTERS = 5000
"""Long messages are cut in the middle, so the end stays."""

SLOW_SECONDS = 12.0

ACTIONS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "wait": lambda: time.sleep(SLOW_SECONDS),
    **faults.ACTIONS,
}
"""Actions by name."""


def environment(plan: list[FaultAt], folder: Path) -> dict[str, str]:
    """Return variables for processes that call `install`."""
    folder.mkdir(exist_ok=True)
    _arrivals(folder).mkdir(exist_ok=True)
    return {
        PLAN_VARIABLE: json.dumps([asdict(fault) for fault in plan]),
        FOLDER_VARIABLE: str(folder),
    }


def assert_all_happened(plan: Sequence[FaultAt], folder: Path, log: str) -> None:
    """Check that all faults of a plan have happened, in a job with this log."""
    missing = [number for number in range(len(plan)) if not (folder / str(number)).exists()]
    if not missing:
        return
    number = missing[0]
    visits = _visits(folder, number)
    too_early = visits.read_text().splitlines() if visits.exists() else []
    raise AssertionError(
        f"{len(missing)} of {len(plan)} faults did not happen; the first is number {number}: "
        f"{plan[number]}\nIts rank passed the point {len(too_early)} times too early:\n"
        + "\n".join(too_early[-_SHOWN_VISITS:])
        + f"\nThe end of the log:\n{log[-_SHOWN_CHARACTERS:]}"
    )


def _count(folder: Path) -> int:
    return len(list(folder.iterdir()))


def _visits(folder: Path, number: int) -> Path:
    """Return the list of times at which a rank reached its point too early."""
    return folder.with_name(f"{folder.name}-visits-{number}")


def _arrivals(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-arrivals")


def reach(point: str) -> None:
    """Inject a fault here if one is due."""
    if _Injector.of_this_process is not None:
        _Injector.of_this_process.inject_if_due(point)


class _Injector:
    of_this_process: ClassVar[_Injector | None] = None

    def __init__(self, plan: list[FaultAt], folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._run: Any = None
        self._agreed_on = 0
        self._faults_before = 0

    def know(self, run: Any) -> None:
        """Note that the ranks of a new group continue from this state."""
        self._run, self._agreed_on = run, run.position.step
        self._faults_before = _count(self._folder)

    def inject_if_due(self, point: str) -> None:
        for number, fault in enumerate(self._plan):
            marker = self._folder / str(number)
            if marker.exists():
                continue
            is_its_time = fault.step == 0 or self._is_about_to_take(fault, number)
            rank = int(os.environ["RANK"])
            if fault.rank == rank and fault.point == point:
                if not is_its_time:
                    self._note_visit(number)
                    return
                self._wait_for_others(fault, number)
                marker.touch()
                ACTIONS[fault.action]()
            elif fault.rank != rank and fault.others_at == point and is_its_time:
                (_arrivals(self._folder) / f"{number}-{rank}").touch()
            return

    def _wait_for_others(self, fault: FaultAt, number: int) -> None:
        if not fault.others_at:
            return
        wanted = fault.others or int(os.environ["WORLD_SIZE"]) - 1
        until = time.monotonic() + _OTHERS_SECONDS
        while len(list(_arrivals(self._folder).glob(f"{number}-*"))) < wanted:
            assert time.monotonic() < until, f"the other ranks have not reached {fault.others_at!r}"
            time.sleep(0.01)

    def _note_visit(self, number: int) -> None:
        done = "nothing" if self._run is None else self._run.position
        with _visits(self._folder, number).open("a") as visits:
            visits.write(
                f"process {os.getpid()} has done {done}; its group formed at step "
                f"{self._agreed_on} after {self._faults_before} faults\n"
            )

    def _is_about_to_take(self, fault: FaultAt, number: int) -> bool:
        if self._run is None:
            return False
        done, turns = self._run.position.step, self._run.position.turns
        formed_since = self._faults_before >= number and done > self._agreed_on
        return bool(formed_since and done >= fault.step - 1 and turns >= fault.turn)


def install(variables: Mapping[str, str]) -> None:
    """Inject the planned faults into ranks that are forked from this process."""
    if PLAN_VARIABLE not in variables:
        return
    from ddp_trainer.checkpoints import checkpoint  # noqa: PLC0415
    from ddp_trainer.collectives.ddp_group import DDPGroup  # noqa: PLC0415
    from ddp_trainer.collectives.group import Group  # noqa: PLC0415
    from ddp_trainer.collectives.shard_gradients import ShardGradients  # noqa: PLC0415
    from ddp_trainer.devices.gate import Gate  # noqa: PLC0415
    from ddp_trainer.library import checkpoint_manager, job  # noqa: PLC0415
    from ddp_trainer.library.sharded import exchange, saved_parts, snapshots  # noqa: PLC0415
    from ddp_trainer.library.steps.taking import Steps  # noqa: PLC0415
    from ddp_trainer.process_group import connection  # noqa: PLC0415
    from ddp_trainer.process_group.rendezvous import rendezvous  # noqa: PLC0415
    from ddp_trainer.run import stop, updates  # noqa: PLC0415
    from torch.optim import adam  # noqa: PLC0415

    plan = [FaultAt(**fault) for fault in json.loads(variables[PLAN_VARIABLE])]
    injector = _Injector.of_this_process = _Injector(plan, Path(variables[FOLDER_VARIABLE]))

    def at(point: str) -> Callable[..., None]:
        return lambda *_: injector.inject_if_due(point)

    def inject_in_backward(_: object, model: Any, *__: object) -> None:
        # The gradient of one parameter in the middle is ready: some buckets may be on their way.
        parameters = [each for each in model.parameters() if each.requires_grad]
        parameters[len(parameters) // 2].register_hook(at("backward"))

    if any("vote" in (fault.point, fault.others_at) for fault in plan):
        # Steps that take milliseconds have no vote for dozens of steps, perhaps to the end.
        setattr(stop.Votes, "pace", lambda *_: None)  # noqa: B010

    patch(
        checkpoint_manager.CheckpointManager, "agree", after=lambda _, its, __: injector.know(its)
    )
    patch(snapshots.Snapshots, "agree", after=lambda its, _: injector.know(its._run))
    patch(Group, "start_sum", after=at("vote"))
    patch(DDPGroup, "allreduce", before=at("used parameters"))
    patch(Group, "wrap", before=inject_in_backward)
    patch(ShardGradients, "__init__", before=inject_in_backward)
    patch(Gate, "wait", before=at("gate"))
    patch(updates.Updates, "complete_step", before=at("before the optimizer's step"))
    patch(updates.Updates, "take_turn", after=at("after a turn"))
    patch(adam, "adam", after=at("within the optimizer's step"))
    patch(updates, "advance", after=at("after the optimizer's step"))
    patch(Steps, "_complete", after=at("a step taken"))
    patch(job.Job, "sum", before=at("evaluation"))
    patch(checkpoint, "write_file", after=at("within a save"))
    patch(rendezvous.Rendezvous, "meet", after=at("rendezvous"))
    patch(connection.Connection, "open", before=at("connection"))
    patch(checkpoint_manager, "transfer_state", before=at("the state's transfer"))
    patch(snapshots.Snapshots, "_transfer", before=at("the state's transfer"))
    patch(saved_parts.SavedParts, "save", before=at("a save in memory"))
    for user in (snapshots, exchange):
        patch(user, "receive", before=at("a snapshot's copy"))
        patch(user, "send", before=at("a snapshot's departure"))
    patch(snapshots.Snapshots, "take", before=at("a snapshot"))
    patch(exchange.HeldCopies, "exchange", after=at("a snapshot copied"))


def patch(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] = lambda *_: None,
    after: Callable[..., None] = lambda *_: None,
) -> None:
    """Call functions before or after another one, with its arguments."""
    original = getattr(owner, name)

    def replacement(*arguments: Any, **options: Any) -> Any:
        before(*arguments)
        result = original(*arguments, **options)
        after(*arguments)
        return result

    setattr(owner, name, replacement)
