"""Our side as a process: plans as JSON lines on stdin, a curve for each on stdout."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    import torch

    from benchmarks.curves.ours import curve
    from benchmarks.curves.tasks import Plan

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(curve(Plan(**json.loads(line)))), file=out, flush=True)


if __name__ == "__main__":
    main()
