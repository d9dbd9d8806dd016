"""The operations that ranks perform together."""
