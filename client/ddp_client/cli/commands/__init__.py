"""The commands of `kubectl ddp`, a module for each."""
