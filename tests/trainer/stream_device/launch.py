"""The trainer's launcher, whose ranks compute on a device with a stream."""

from __future__ import annotations

from tests.trainer import launch

if __name__ == "__main__":
    launch.main("tests.trainer.stream_device.forkserver")
