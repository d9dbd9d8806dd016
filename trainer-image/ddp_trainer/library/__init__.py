"""The library that `import ddp_trainer` gives a training script: recovery for its own loop."""
