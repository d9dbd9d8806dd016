"""The bundled training loop, and the rank that runs it."""
