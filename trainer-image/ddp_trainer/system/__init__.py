"""This process and its machine: memory, threads, signals, signs of life. Nothing of training."""
