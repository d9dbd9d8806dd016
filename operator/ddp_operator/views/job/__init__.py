"""One job: how it is, why, and what comes next."""
