"""Places for pods: their group in a queue, half-placed gangs, nodes that they may use again."""
