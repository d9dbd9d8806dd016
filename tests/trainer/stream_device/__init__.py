"""A device on the CPU that is told its work in advance, as a GPU is: see `device`."""
