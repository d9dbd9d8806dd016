"""Protection of a server that anybody may call, for the operator's ports and the launchers'."""
