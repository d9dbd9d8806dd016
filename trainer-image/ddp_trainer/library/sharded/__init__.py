"""Keeps a sharded model's training in memory: each rank's part is copied to other ranks."""
