"""Processes: starting them, their backend, what can go wrong with them, and going on after."""
