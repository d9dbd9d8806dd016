"""Timeouts that a user did not choose follow the chosen ones; `test_config` has contradictions."""

from __future__ import annotations

import pytest
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.launcher.options import LaunchOptions
from ddp_trainer.settings.options import Options
from ddp_trainer.settings.timeouts import contact_seconds


@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpoint-timeout-seconds=600"],
        ["--checkpoint-timeout-seconds=900", "--group-timeout-seconds=900"],
        ["--heartbeat-timeout-seconds=0", "--group-timeout-seconds=5"],
        ["--rendezvous-timeout-seconds=1"],
        ["--stop-within-seconds=5000"],
    ],
)
def test_chosen_timeouts_stay_as_they_are(flags: list[str]) -> None:
    options = Options.parse(flags)
    for flag in flags:
        name, value = flag.removeprefix("--").replace("-", "_").split("=")
        if name.endswith("seconds"):
            assert getattr(options, name) == float(value)


def test_default_timeouts_follow_the_chosen_one() -> None:
    plain = Options.parse([])
    assert plain.checkpoint_timeout_seconds == 300
    assert plain.heartbeat_timeout_seconds == 10
    assert plain.rendezvous_timeout_seconds == plain.group_timeout_seconds == 600

    short = Options.parse(["--group-timeout-seconds=5"])
    assert short.checkpoint_timeout_seconds == short.heartbeat_timeout_seconds == 5


def test_ranks_are_not_killed_while_they_may_still_save() -> None:
    assert LaunchOptions.parse([]).kill_after_seconds == 30
    assert LaunchOptions.parse(["--stop-within-seconds=100"]).kill_after_seconds == 100
    plan = LaunchOptions.parse(["--stop-within-seconds=3", "--kill-after-seconds=3"])
    assert plan.kill_after_seconds == 3
    assert LaunchOptions.parse(["--kill-after-seconds=0.2", "--", "true"]).kill_after_seconds == 0.2
    with pytest.raises(
        ConfigurationError,
        match="--stop-within-seconds is 14 and --kill-after-seconds 5: ranks would be killed "
        "while they may still save; lower the first, or raise the second to 14 or more",
    ):
        LaunchOptions.parse(["--kill-after-seconds=5"])


def test_large_groups_have_longer_for_their_first_contact() -> None:
    """512 ranks read 262,144 addresses from one thread, which took it 13 s."""
    assert 15 < contact_seconds(2) < 16
    assert contact_seconds(512) > 3 * 13
    assert contact_seconds(1024) > 4 * 3 * 13
