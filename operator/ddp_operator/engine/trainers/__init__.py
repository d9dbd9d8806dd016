"""Ask the trainers and launchers in pods for progress and failures."""
