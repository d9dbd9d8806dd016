"""Leader election: its rules, the Lease, and the thread that renews it."""
