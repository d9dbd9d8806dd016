"""A folder for the PYTHONPATH of scripts: Python runs the `sitecustomize` that it finds there."""
