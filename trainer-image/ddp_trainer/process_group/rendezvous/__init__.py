"""The rendezvous: ranks find each other and agree on the members of the group."""
