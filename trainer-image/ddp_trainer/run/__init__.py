"""What a training run is made of, and all that it must remember."""
