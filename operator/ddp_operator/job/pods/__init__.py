"""A job's pods: how they are built, and what the operator reads of them."""
