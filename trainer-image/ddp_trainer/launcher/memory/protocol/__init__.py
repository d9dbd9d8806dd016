"""Requests about snapshots between the launchers of a job: their messages, both sides of them."""
