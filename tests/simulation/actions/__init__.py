"""Events of a history: what users, nodes, pods and the cluster do."""
