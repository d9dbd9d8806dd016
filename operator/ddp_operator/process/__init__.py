"""The operator as a process: start-up, replicas, handlers, logs and the end."""
