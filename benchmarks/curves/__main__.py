"""`python -m benchmarks.curves`"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.curves.measure import measure
from benchmarks.figures import show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("model", nargs="?", type=Path, default=Path("models/tiny"))
    given = parser.parse_args()
    for line in measure(given.model, given.seeds, given.steps):
        show(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
