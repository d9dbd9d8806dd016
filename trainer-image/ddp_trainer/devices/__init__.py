"""The device of a rank, and the wait until its queued work is done."""
