"""Work that goes on beside the reconciles of single jobs."""
