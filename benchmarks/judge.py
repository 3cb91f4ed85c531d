"""How long `temper judge --method answer` takes a pair, and whether its verdicts are right.

`python -m benchmarks.judge`. One process, one line at a time over its pipes, both ways round, the pairs of the tests
(collected, by kind and drawn by rule). A figure includes JSON and the pipes; the start of the process does not count,
the first use of each library does.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import TEMPER, figure, show

COLLECTED = Path(__file__).parent.parent / "tests" / "verification" / "comparators" / "math_pairs.jsonl"
SEED, ROUNDS = 20_261, 8
_READY = {"gold": "1", "answer": "1"}


def measure() -> dict[str, Any]:
    """One figure: p99 in ms, with the median, the largest, the wrong verdicts and the pairs."""
    pairs = _pairs()
    seconds, wrong = [], []
    with subprocess.Popen(
        [*TEMPER, "judge", "--method", "answer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        _asked(process, _READY)
        for record, equal in pairs:
            started = time.perf_counter()
            found = _asked(process, record)
            seconds.append(time.perf_counter() - started)
            if found.get("equal") is not equal:
                wrong.append(record)
        assert process.stdin is not None
        process.stdin.close()
    seconds.sort()
    return figure(
        "judge.answer.p99",
        round(1000 * seconds[int(len(seconds) * 0.99)], 2),
        "ms",
        median_ms=round(1000 * seconds[len(seconds) // 2], 2),
        max_ms=round(1000 * seconds[-1], 2),
        wrong=len(wrong),
        pairs=len(pairs),
    )


def _asked(process: subprocess.Popen[bytes], record: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(record).encode() + b"\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


def _pairs() -> list[tuple[dict[str, Any], bool]]:
    """Records with the right verdict, each both ways round."""
    from tests.verification.comparators.drawn import drawn_pairs
    from tests.verification.comparators.kinds import KINDS

    out: list[tuple[dict[str, Any], bool]] = []
    collected = [json.loads(line) for line in COLLECTED.read_text().splitlines()]
    plain = [(pair["gold"], pair["answer"], pair["equal"]) for pair in collected]
    for left, right, equal in (*plain, *(pair for kind in KINDS.values() for pair in kind)):
        out += [({"gold": a, "answer": b}, equal) for a, b in ((left, right), (right, left))]
    for drawn in drawn_pairs(SEED, ROUNDS):
        out.append(({"gold": drawn.left, "answer": drawn.right, "type": drawn.type}, drawn.equal))
    return out


if __name__ == "__main__":
    show(measure())
