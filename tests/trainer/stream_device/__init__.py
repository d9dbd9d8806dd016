"""A device on the CPU that executes work asynchronously, like a GPU: see `device`."""
