"""The search for a layout, and the defence of the one chosen."""
