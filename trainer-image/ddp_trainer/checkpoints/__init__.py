"""Runs on disk, and on the way there and back."""
