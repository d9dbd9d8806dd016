"""Results of jobs, and reports about them."""
