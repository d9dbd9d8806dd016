"""What a rank computes on, and when what it was told is done."""
