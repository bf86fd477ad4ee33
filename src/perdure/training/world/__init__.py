"""The whole state of a training: captured as a tree, and put back in place."""
