"""A plan in the language of other tools, and their files as plans."""
