"""Work beside the reconciles of single jobs."""
