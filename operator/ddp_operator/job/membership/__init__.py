"""Who is in a job's group: the table, what launchers are told of it, what they say."""
