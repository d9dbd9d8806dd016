"""Who is in a job's group, and the protocol with launchers."""
