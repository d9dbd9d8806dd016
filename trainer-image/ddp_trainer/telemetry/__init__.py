"""What a training tells the world while it runs: people, Prometheus, and whoever restarts it."""
