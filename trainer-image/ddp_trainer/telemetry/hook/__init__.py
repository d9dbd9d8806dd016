"""A folder for the PYTHONPATH of scripts: Python imports its `sitecustomize` at start."""
