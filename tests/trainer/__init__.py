"""The trainer, with real processes that talk over loopback."""
