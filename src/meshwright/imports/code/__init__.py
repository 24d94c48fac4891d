"""A Python file followed statically: what its names, calls and functions would be. Nothing is imported or run."""
