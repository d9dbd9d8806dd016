"""Decide about failures: as they happen, once their cause is seen, and before nodes leave."""
