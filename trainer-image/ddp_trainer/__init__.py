"""The training side of a DDPJob: it runs inside the pods, and training scripts import it.

    import ddp_trainer

    with ddp_trainer.join(model=model, optimizer=optimizer) as job:
        net = job.wrap(model)
        for epoch in job.epochs(10):
            for inputs, targets in job.batches(loader):
                loss = criterion(net(inputs), targets)
                loss.backward()
                job.step(loss)

It reads only its environment, its flags and the checkpoint directory, and talks only to the other
ranks. It knows nothing of Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_trainer.library.job import Job as Job
    from ddp_trainer.library.join import join as join
    from ddp_trainer.library.sharded.device_mesh import device_mesh as device_mesh
    from ddp_trainer.library.training_length import steps_per_epoch as steps_per_epoch

__all__ = ["Job", "device_mesh", "join", "steps_per_epoch"]

_MODULES = {
    "Job": "ddp_trainer.library.job",
    "device_mesh": "ddp_trainer.library.sharded.device_mesh",
    "join": "ddp_trainer.library.join",
    "steps_per_epoch": "ddp_trainer.library.training_length",
}


def __getattr__(name: str) -> Any:
    """Import the names that scripts use on first access, so the launcher does not load torch.

    Raises:
        ImportError: this torch is too old, for example in an image that gets the launcher injected.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    from ddp_trainer.system.torch_release import shortcoming  # noqa: PLC0415

    if sentence := shortcoming(f"{__name__}.{name}"):
        raise ImportError(f"{sentence}: use an image with a newer torch")
    return getattr(importlib.import_module(_MODULES[name]), name)
