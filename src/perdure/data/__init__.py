"""Room 2: the data that a run is fed with, dealt again exactly after a resume."""
