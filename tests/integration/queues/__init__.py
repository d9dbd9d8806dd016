"""Jobs in queues of a real Kueue."""
