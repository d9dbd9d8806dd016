"""The launcher, whose ranks run a test's script instead of the bundled loop."""

from __future__ import annotations

from tests.trainer import launch

if __name__ == "__main__":
    launch.main("tests.trainer.library.forkserver")
