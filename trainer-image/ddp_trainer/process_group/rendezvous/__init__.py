"""How ranks find each other and agree on who is there, as often as it takes."""
