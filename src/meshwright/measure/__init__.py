"""Measuring the user's own machines, and settling plans on them."""
