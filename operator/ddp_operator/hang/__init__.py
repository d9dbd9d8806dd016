"""Says which ranks a hanging job waits for, and what keeps them, from its launchers' answers."""
