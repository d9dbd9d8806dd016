"""What is known of nodes: GPUs that GKE rents out, and what a node says of itself."""
