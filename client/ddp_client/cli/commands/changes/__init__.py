"""Commands that change a job; each tells the effect first and asks for confirmation."""
