"""What to do next: `plan.plan` decides, and carries out what is decided."""
