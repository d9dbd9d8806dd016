"""What a pod's launcher is told of the group while its job lives, and what it tells others."""
