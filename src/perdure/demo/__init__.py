"""Room 4, a door: a real training run, killed and proved, in under a minute."""
