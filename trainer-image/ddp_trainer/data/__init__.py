"""Assigns samples to ranks, and loads them."""
