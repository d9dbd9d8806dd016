"""The commands: what they fetch, which view they print, what they change, and their exit codes."""
