"""A job's pods: what is known of them, what they mean to the job, and what they are made of."""
