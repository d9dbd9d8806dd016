"""Assembles what one rank needs to keep its part of a sharded model and to compare it."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from ddp_trainer.library.checks.verification import Verification
from ddp_trainer.library.script_collectives import ScriptCollectives
from ddp_trainer.library.sharded.copy_holders import CopyHolders
from ddp_trainer.library.sharded.saved_parts import SavedParts
from ddp_trainer.library.sharded.snapshots import Snapshots
from ddp_trainer.library.sharded.state_at_rest import StateAtRest
from ddp_trainer.library.sharded.support import part_of
from ddp_trainer.library.sharded.verified_step import KeptSnapshots, VerifiedStep
from ddp_trainer.memory.saving import Saver
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.settings.options import Options


def assembled(
    run: TrainState,
    mesh: DeviceMesh,
    script: ScriptCollectives,
    options: Options,
    saver: Saver | None,
    assignment: CurrentAssignment,
    *,
    copies: int,
) -> tuple[Snapshots, Verification]:
    """Return the snapshots of this rank's part, and the comparison with other ranks.

    `mesh`: of the run's models. `script`: the script's collectives. `saver`: in the memory of the
    pod. `copies`: ranks that receive each snapshot.
    """
    part, every_steps = part_of(mesh), options.verify_replicas
    has_replicas = part.parts > 0
    is_alone = mesh.size() == 1
    is_compared = options.verify_gradients > 0 or (every_steps > 0 and has_replicas)
    snapshots = Snapshots(
        run,
        mesh,
        script,
        SavedParts(saver),
        CopyHolders(assignment, copies=copies),
        StateAtRest(run, is_verified=every_steps > 0 and not (has_replicas or is_alone)),
        VerifiedStep(is_required=is_compared),
    )
    verification = Verification(
        run,
        every_steps=every_steps if has_replicas else 0,
        probe_every_steps=options.verify_gradients,
        part=part,
        kept=KeptSnapshots(run, snapshots),
    )
    return snapshots, verification
