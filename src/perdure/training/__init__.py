"""Room 3: the run itself: its loops, what it remembers, and when it stops."""
