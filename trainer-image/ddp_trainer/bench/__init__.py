"""Measures the network between ranks before a training burns GPU hours on a slow one."""
