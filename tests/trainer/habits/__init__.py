"""Small training loops as people write them, each with plain torch and with `join`."""
