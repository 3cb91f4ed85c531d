"""The smallest settings that name a run, for tests of telemetry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.settings import Settings, parse_settings


def run_settings(tmp_path: Path, *, name: str = "quiet", **telemetry: Any) -> Settings:
    return parse_settings(
        {
            "run": {"name": name, "folder": str(tmp_path)},
            "model": {"path": "none"},
            "domains": [{"name": "sums"}],
            "stages": [{"kind": "rl", "steps": 1}],
            "telemetry": telemetry,
        }
    )
