"""Tensors and plain values as named bytes, and back: between the store and the rooms that know torch."""
