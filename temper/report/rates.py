"""Held-out pass rates by step, as a run's summary has them.

Light: no broker and no summary's model, so that a policy is found in no time.
"""

from __future__ import annotations

import json
from pathlib import Path

from shared.errors import DataError
from shared.plain_errors import said

SUMMARY = "summary.json"


def pass_rates(run_folder: Path) -> dict[int, float] | None:
    """The last rate that was measured of each step; None where there is no summary yet. Raises `DataError`."""
    path = run_folder / SUMMARY
    try:
        evaluations = json.loads(path.read_text(encoding="utf-8"))["evaluations"]
        return {
            int(one["step"]): float(one["overall"]["rate"])
            for one in evaluations
            if one["overall"]["rate"] is not None
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise no_summary(path, said(error)) from error


def no_summary(path: Path, why: str) -> DataError:
    return DataError(f"{path} is no summary: {why}; remove it, and `temper report` makes it again")
