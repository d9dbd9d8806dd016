"""Rules that every history must obey, judged by what really happened."""
