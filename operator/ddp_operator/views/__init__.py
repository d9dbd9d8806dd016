"""From a job, its pods and the time to text: pure, and safe to print whatever a cluster holds."""
