"""What `import ddp_trainer` gives a training script: recovery for a loop of its own."""
