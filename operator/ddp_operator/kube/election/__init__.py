"""Which replica acts: the rules of leader election, the Lease, and the thread that keeps it."""
