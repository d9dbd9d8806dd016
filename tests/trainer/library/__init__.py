"""A script's own training loop, with `import ddp_trainer`."""
