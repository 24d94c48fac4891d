"""Training programs that are no framework's: loops, settings and configurations of one's own."""
