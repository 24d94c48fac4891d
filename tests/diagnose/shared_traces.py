"""Where third-party artefacts lie, if they do; they are not part of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def shared(path: str) -> Path:
    where = ROOT / path
    if not where.exists():
        pytest.skip(f"third-party artefacts are not here (../shared/traces/{path})")
    return where
