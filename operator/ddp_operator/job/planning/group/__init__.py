"""Plans that decide who is in the group, and have its launchers told."""
