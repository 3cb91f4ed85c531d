"""Who is there, in words: for a run that does not move.

Invariant: a service without a living process is named, with who was heard of last and how long ago; one that lives
says itself what it waits for. Pure: the clock's reading is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.contracts import Heartbeat

PEERS = ("rollout", "verifier", "learner")
SILENT_BEATS = 10
"""A process is taken for gone after so many heartbeats that did not come; a long step delays a few."""
NAMED = 3
"""Processes of one service that are named."""


def peers_in_words(beats: Iterable[Heartbeat], now_ms: int, heartbeat_s: float) -> str:
    """`beats`: the newest heartbeat of every worker of the run. One clause a service that is gone or waits."""
    known = list(beats)
    oldest = now_ms - int(SILENT_BEATS * heartbeat_s * 1000)
    clauses = []
    for service in PEERS:
        ours = sorted((b for b in known if b.service == service), key=lambda b: -b.created_ms)
        living = [b for b in ours if b.created_ms >= oldest and b.state not in ("stopped", "failed")]
        if living:
            clauses += [f"{b.worker_id} waits for {b.waits_for}" for b in living if b.waits_for][:NAMED]
        else:
            clauses.append(f"no {service} is alive{_last_heard(ours, now_ms)}")
    return "; ".join(clauses)


def _last_heard(beats: list[Heartbeat], now_ms: int) -> str:
    if not beats:
        return " (none was ever heard of)"
    newest = beats[0]
    said = newest.state if newest.state in ("stopped", "failed") else "last heard of"
    return f" ({newest.worker_id} {said} {max(0, now_ms - newest.created_ms) / 1000:.0f} s ago)"
