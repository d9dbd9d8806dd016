"""Models that are sharded over the ranks, and device meshes."""
