"""Who is in the group: found, watched, lost and found anew."""
