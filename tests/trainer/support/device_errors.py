"""The error that torch raises when a device has failed."""

import torch

DeviceError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
"""A separate type since torch 2.8."""
