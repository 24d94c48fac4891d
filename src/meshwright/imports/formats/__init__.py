"""What frameworks read: one file a format, or a few that begin with its name."""
