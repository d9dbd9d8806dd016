"""Process 1 of a pod: starts, watches and reports on the ranks, and ends with one exit code."""
