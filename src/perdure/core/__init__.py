"""Room 1: words that every other room shares. Standard library only."""
