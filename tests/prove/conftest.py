"""The loops that these tests train are shared with benchmarks/prove_bugs.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
