"""Finds what is wrong with a run from its traces, logs and error texts."""
