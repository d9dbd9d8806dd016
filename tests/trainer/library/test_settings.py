"""The settings of join(): the same dataclass as the bundled trainer's, without a command line."""

from __future__ import annotations

import argparse
from typing import Any

import ddp_trainer
import pytest
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.training import OptimizationOptions
from torch import nn


def joined(**settings: Any) -> Options:
    with ddp_trainer.join(model=nn.Linear(1, 1), **settings) as job:
        return job._session.options


def refusal(**settings: Any) -> str:
    with pytest.raises(SystemExit) as end, ddp_trainer.join(model=nn.Linear(1, 1), **settings):
        raise AssertionError("it joined")
    assert end.value.code == 64
    assert isinstance(end.value.__cause__, ConfigurationError)
    return str(end.value.__cause__)


def test_a_script_needs_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object) -> None:
        raise AssertionError("something parses a command line")

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse)
    options = joined(seed=3, keep_checkpoints=5, logical_shards=2, tensorboard=False)
    assert options == Options(
        seed=3,
        checkpoint_every_steps=0,
        checkpoint_every_seconds=300.0,
        keep_checkpoints=5,
        optimization=OptimizationOptions(logical_shards=2),
    )


def test_the_command_line_has_the_same_defaults() -> None:
    assert Options.parse([]) == Options()
    assert Options.parse(["--batch-size=8"]) == Options(batch_size=8)


def test_default_timeouts_follow_a_scripts_own() -> None:
    options = joined(group_timeout_seconds=5.0)
    assert options.heartbeat_timeout_seconds == 5
    assert options.checkpoint_timeout_seconds == 5


def test_a_script_sets_the_time_limit_of_saves() -> None:
    options = joined(
        checkpoint_timeout_seconds=900, group_timeout_seconds=900, stop_within_seconds=1700
    )
    assert (options.checkpoint_timeout_seconds, options.stop_within_seconds) == (900, 1700)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"checkpoint_timeout_seconds": 900},
            "join(): checkpoint_timeout_seconds is 900 and group_timeout_seconds 600: the other "
            "ranks would give up while rank 0 may still save; lower the first, or raise the second "
            "to 900 or more",
        ),
        (
            {"checkpoint_timeout_seconds": 0},
            "join(): checkpoint_timeout_seconds is 0: set it to 1 or more",
        ),
        ({"stop_within_seconds": 0.5}, "join(): stop_within_seconds is 0.5: set it to 1 or more"),
        ({"keep_checkpoints": 0}, "join(): keep_checkpoints is 0: set it to 1 or more"),
        ({"max_reforms": 1.5}, "join(): max_reforms is 1.5: set it to a whole number"),
        ({"seed": True}, "join(): seed is True: set it to a whole number"),
        (
            {"group_timeout_seconds": float("nan")},
            "join(): group_timeout_seconds is nan: set it to a number",
        ),
        (
            {"rendezvous_timeout_seconds": "600"},
            "join(): rendezvous_timeout_seconds is '600': set it to a number",
        ),
    ],
)
def test_wrong_settings_are_named_like_in_the_script(
    settings: dict[str, Any], message: str
) -> None:
    assert refusal(**settings) == message


def test_wrong_settings_of_wrap_are_named_too() -> None:
    model = nn.Linear(1, 1)
    with ddp_trainer.join(model=model) as job:
        with pytest.raises(ConfigurationError, match=r"^wrap\(\): bucket_cap_mb is 0: set it to"):
            job.wrap(model, bucket_cap_mb=0)
        with pytest.raises(
            ConfigurationError, match=r"wrap\(\): static_graph finds .* remove find"
        ):
            job.wrap(model, static_graph=True, find_unused_parameters=True)
