"""The list of status fields that decisions read (`api.status.decisive`) is complete and short.

Also, each history makes one plan in eight again without all other fields (`OperatorProcess`).
"""

import ast
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ddp_operator import api, job
from ddp_operator.api.status import (
    DECISIVE,
    CheckpointRecord,
    DDPJobStatus,
    MemoryCheckpointRecord,
    Progress,
)
from ddp_operator.api.status.decisive import decisive_names
from ddp_operator.api.values.bounded import StatusModel, wire_name
from ddp_operator.job.planning import plan

from tests.simulation.history import MOST_STEPS, SPEC_BYTES, STEP_BYTES
from tests.simulation.run import run

HISTORIES = 100
NOT_DECISIVE = {
    *("status.disruptions", "status.observedGeneration", "status.readyReplicas"),
    "status.progress.lastStepTime",
}
"""Read to be increased or copied, observed by the same plan, or part of a message; no stored value
matters."""
MODELS: dict[str, type[StatusModel]] = {
    "status": DDPJobStatus,
    "status.progress": Progress,
    "status.checkpoint": CheckpointRecord,
    "status.memoryCheckpoint": MemoryCheckpointRecord,
}
DISPLAYS = {"goodput.py", "preemption.py"}
"""Modules of `job` that account for time; no decision depends on it."""


class Recorder:
    """Records the fields of the status that are read while `_decide` and `_carry_out` run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self._records = False
        for path, model in MODELS.items():
            fields = {
                name: f"{path}.{wire_name(name)}"
                for name, field in model.model_fields.items()
                if f"{path}.{wire_name(name)}" not in MODELS
            }
            monkeypatch.setattr(model, "__getattribute__", self._recorded(fields))
        for name in ("_decide", "_carry_out"):
            monkeypatch.setattr(plan, name, self._recording(getattr(plan, name)))

    def _recorded(self, fields: dict[str, str]) -> Any:
        def read(model: StatusModel, name: str) -> Any:
            if self._records and name in fields:
                self.names.add(fields[name])
            return object.__getattribute__(model, name)

        return read

    def _recording(self, decide: Any) -> Any:
        def recorded(*args: Any) -> Any:
            self._records = True
            try:
                return decide(*args)
            finally:
                self._records = False

        return recorded


def test_fields_that_decisions_read_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, random = Recorder(monkeypatch), Random(1)
    for _ in range(HISTORIES):
        run(random.randbytes(SPEC_BYTES + MOST_STEPS * STEP_BYTES))
    assert {"status.attempt", "status.conditions", "status.progress.step"} <= recorder.names
    assert recorder.names - decisive_names(recorder.names) <= NOT_DECISIVE


def test_listed_fields_are_read_by_decisions() -> None:
    names = {
        wire_name(node.attr)
        for package in (job, api.status)  # with the models' own properties
        for path in Path(package.__file__ or "").parent.rglob("*.py")
        if path.name not in DISPLAYS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert {name for name in DECISIVE if name.rpartition(".")[2] not in names} == set()
