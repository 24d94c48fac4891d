"""The local web studio."""
