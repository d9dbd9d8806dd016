"""What fields hold: brought into bounds, and safe to match, store and print."""
