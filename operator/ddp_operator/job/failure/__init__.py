"""Failures: their class and cause, and what rules, restart budget and nodes make of them."""
