"""The connection to a cluster for people: jobs of any release, their pods and their logs."""
