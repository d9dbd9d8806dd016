"""What torch raises when a device has failed."""

import torch

DeviceError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
"""A type of its own since torch 2.8."""
