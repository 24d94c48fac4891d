"""The decoder, its operations and its weights: the same code on one device and on a thousand."""
