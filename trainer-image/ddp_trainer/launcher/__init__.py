"""Process 1 of a pod: starts the ranks, watches them, speaks for them, ends in one exit code."""
