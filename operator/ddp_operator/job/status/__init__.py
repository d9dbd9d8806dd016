"""What a job's status says of how it goes: conditions and phase, progress, goodput."""
