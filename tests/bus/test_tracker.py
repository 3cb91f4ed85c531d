"""The commit tracker: no order of finishing, no restart and no cut note may pass an unfinished record."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.bus.commit_notes import MAX_BYTES, Range, decode_ahead, encode_ahead
from shared.bus.tracker import CommitTracker, merged


class TrackerMachine(RuleBasedStateMachine):
    """A partition's life: fetches (with gaps), finishes in any order, commits, and restarts from what was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = CommitTracker(0)
        self.log: list[int] = []
        self.finished: set[int] = set()
        self.running: set[int] = set()
        self.durable: tuple[int, str] = (0, "")

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.tracker = CommitTracker(start)
        self.durable = (start, "")
        self.next_new = start

    @rule(gap=st.integers(1, 3))
    def fetch_new(self, gap: int) -> None:
        """A record nobody has seen; compaction and control records leave gaps in the offsets."""
        for offset in [known for known in self.log if known >= self.tracker.position]:
            self._fetch(offset)
        offset = self.next_new + gap - 1
        self.next_new = offset + 1
        self.log.append(offset)
        self._fetch(offset)

    def _fetch(self, offset: int) -> None:
        if self.tracker.take(offset):
            self.running.add(offset)
        else:
            assert offset in self.finished, f"{offset} would be skipped unhandled"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish_one(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(offset)
        self.finished.add(offset)
        self.tracker.finish(offset)

    @rule(accepted=st.booleans())
    def commit(self, accepted: bool) -> None:
        state = self.tracker.to_commit()
        if state is not None and accepted:
            self.durable = state
            self.tracker.committed(state)
            assert self.tracker.to_commit() is None

    @rule()
    def crash(self) -> None:
        """Everything not committed is forgotten; what was finished may be done again, and nothing is skipped."""
        self.tracker = CommitTracker.resumed(*self.durable)
        self.running.clear()
        for offset in [known for known in self.log if known >= self.durable[0]]:
            self._fetch(offset)

    @invariant()
    def prefix_is_finished(self) -> None:
        unfinished = [offset for offset in self.log if offset not in self.finished]
        if unfinished:
            assert self.tracker.prefix <= min(unfinished)
            assert self.durable[0] <= min(unfinished)
        for span in self.tracker.ahead():
            assert not [offset for offset in unfinished if span.start <= offset < span.end]


TestTracker = TrackerMachine.TestCase


def _from_steps(steps: list[tuple[int, int]]) -> list[Range]:
    out, at = [], 7
    for gap, length in steps:
        out.append(Range(at + gap + 1, at + gap + 1 + length))
        at = out[-1].end
    return out


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=40).map(_from_steps)


@given(spans)
def test_notes_come_back_as_they_were(ranges: list[Range]) -> None:
    assert decode_ahead(7, encode_ahead(7, ranges)) == ranges


@given(spans, st.integers(0, 200))
def test_notes_over_the_limit_lose_only_the_farthest(ranges: list[Range], limit: int) -> None:
    text = encode_ahead(7, ranges, limit)
    assert len(text.encode()) <= limit
    kept = decode_ahead(7, text)
    assert kept == ranges[: len(kept)]


def test_ten_thousand_separate_records_ahead_fit_the_brokers_limit() -> None:
    tracker = CommitTracker(0)
    for offset in range(20_000):
        tracker.take(offset)
    for offset in range(1, 20_000, 2):
        tracker.finish(offset)
    offset, notes = tracker.to_commit() or (0, "")
    assert offset == 0
    assert len(notes.encode()) <= MAX_BYTES
    again = CommitTracker.resumed(offset, notes)
    skipped = [number for number in range(20_000) if not again.take(number)]
    assert skipped == list(range(1, 2 * len(skipped), 2))
    assert len(skipped) > 900


@given(st.text(max_size=60))
def test_foreign_notes_are_no_notes(text: str) -> None:
    for span in decode_ahead(5, text):
        assert 5 <= span.start < span.end


def test_foreign_notes_examples() -> None:
    for text in (
        "",
        None,
        "consumer-1",
        "a1 x",
        "a1 1.0",
        "a1 -1.2",
        "a1 1.2 ",
        "a2 1.2",
        "a1 1_0.2",
        "a1 .",
        "{}",
    ):
        assert decode_ahead(5, text) == [], text


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda p: Range(p[0], p[0] + p[1]))))
def test_merging_covers_the_same_offsets(ranges: list[Range]) -> None:
    covered = {offset for span in ranges for offset in range(span.start, span.end)}
    joined = merged(ranges)
    assert {offset for span in joined for offset in range(span.start, span.end)} == covered
    assert all(left.end < right.start for left, right in itertools.pairwise(joined))


def test_a_restart_below_the_position_hands_out_the_records_again() -> None:
    tracker = CommitTracker(100)
    assert tracker.take(100)
    tracker.restart(150)
    assert tracker.prefix == 150
    assert tracker.take(150)
    tracker.finish(100)
    assert tracker.prefix == 150
