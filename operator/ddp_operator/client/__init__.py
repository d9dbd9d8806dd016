"""A cluster as a person sees it: jobs of any release, their pods, and what these print."""
