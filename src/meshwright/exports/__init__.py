"""A Plan in the language of other tools, and back."""
