"""Types of field values: bounded, and safe to match, store and print."""
