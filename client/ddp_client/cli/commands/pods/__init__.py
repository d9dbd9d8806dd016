"""Commands that connect to pods."""
