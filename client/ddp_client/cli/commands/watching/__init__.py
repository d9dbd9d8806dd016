"""Screens that follow a job or a list until the end or Ctrl-C."""
