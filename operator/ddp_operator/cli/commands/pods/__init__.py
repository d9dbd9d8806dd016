"""Commands that reach into pods."""
