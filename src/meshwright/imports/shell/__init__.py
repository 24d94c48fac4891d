"""A shell script followed statically: what it sets, writes and would start. Nothing is run."""
