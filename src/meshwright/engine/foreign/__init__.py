"""Architectures that the engine's own decoder lacks, computed by transformers' modules."""
