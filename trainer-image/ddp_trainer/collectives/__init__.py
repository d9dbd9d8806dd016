"""What the ranks of one formed group do together."""
