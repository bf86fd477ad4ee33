"""Files that others wrote: read as data only, taken over by name, and said what was taken over and what was not."""
