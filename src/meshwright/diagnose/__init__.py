"""Whatever a run left behind: its cause, the change, and the gain computed before it is tried."""
