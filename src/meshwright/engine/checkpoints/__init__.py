"""Saving a run, and finding the newest save that is whole."""
