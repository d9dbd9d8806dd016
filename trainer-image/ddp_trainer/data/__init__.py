"""Which rank trains on which sample, and how the samples come to its node."""
