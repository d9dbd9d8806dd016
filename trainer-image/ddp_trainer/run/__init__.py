"""The state of a training run, and the steps that change it."""
