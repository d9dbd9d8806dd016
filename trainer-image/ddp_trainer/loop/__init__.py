"""The bundled training loop."""
