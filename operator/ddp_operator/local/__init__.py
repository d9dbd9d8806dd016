"""One job on this machine, without any cluster: `machine` runs its pods, `run` is the command."""
