"""A live view of a resource: listed in pages, watched, and never older than our own writes."""
