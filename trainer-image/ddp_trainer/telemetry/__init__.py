"""Reports the progress of a training to users, Prometheus and the operator."""
