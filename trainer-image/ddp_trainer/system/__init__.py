"""Helpers for processes, threads, signals, memory and signs of life; none knows of training."""
