"""The parts of the command `run`."""
