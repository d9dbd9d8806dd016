"""Text about one job: its state, the cause, and what happens next."""
