"""Held against one device and against the cost model: verify, ledger, dry run, walk, lab."""
