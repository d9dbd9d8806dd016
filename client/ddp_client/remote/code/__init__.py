"""Send code to pods, or to the volume from which they get it."""
