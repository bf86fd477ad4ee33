"""This machine, line by line: what a training needs, whether it is there, and what to do where it is not."""
