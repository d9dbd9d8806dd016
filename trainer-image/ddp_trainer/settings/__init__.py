"""What a user may set, by flags and by the environment, and what of it cannot be meant."""
