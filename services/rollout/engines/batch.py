"""The running batch: rows join, take one token a step, and leave.

Invariant: rows are numbered without gaps; a row's tokens, log-probabilities and versions grow together; a token's
version is that of the weights whose logits drew it; a prompt's keys are shared only within one version.
Confined to one thread, and without a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.rollout.engines.admission import Admission
from services.rollout.engines.base import (
    EngineTimings,
    GenerateRequest,
    Generation,
    GenerationFault,
    draws,
    runs_of,
)
from services.rollout.engines.cut import is_asked
from services.rollout.engines.decoder import Decoder
from services.rollout.engines.sampling import sample


class Ticket(Protocol):
    """Who waits for a request; called from the batch's thread."""

    def done(self, generation: Generation) -> None: ...

    def failed(self, error: Exception) -> None: ...

    def gone(self) -> bool:
        """True where nobody waits any more."""


@dataclass(slots=True)
class Row:
    request: GenerateRequest
    ticket: Ticket
    submitted: float
    uniforms: NDArray[np.float64]
    prompt_version: int = -1
    """Of the weights that made the prompt's keys."""
    started: float = 0.0
    read: float = 0.0
    """When its prompt was read."""
    length: int = 0
    """Slots filled."""
    token: int = 0
    """What it takes in the next step."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.request.tokens


class Batch:
    def __init__(self, decoder: Decoder, admission: Admission[Row], now: Callable[[], float]) -> None:
        self._decoder = decoder
        self._admission = admission
        self._now = now
        self.rows: list[Row] = []
        self.version = -1
        self.sampled_tokens = 0
        self.steps = 0

    @property
    def waiting(self) -> int:
        return len(self._admission)

    @property
    def kv_use(self) -> float:
        """Share of the block that the running rows have reserved: their number times the longest, as it is admitted.
        From any thread."""
        rows = list(self.rows)
        longest = max((row.tokens for row in rows), default=0)
        return max(len(rows) * longest / self._admission.max_tokens, len(rows) / self._admission.max_rows)

    def submit(self, request: GenerateRequest, ticket: Ticket) -> None:
        uniforms = draws(request.seed, request.max_tokens)
        self._admission.submit(Row(request, ticket, self._now(), uniforms))

    def advance(self) -> None:
        """Lets rows join, then one token for every row."""
        self._leave([row for row in self.rows if row.ticket.gone()])
        self._admission.discard([row for row in self._admission.waiting() if row.ticket.gone()])
        self._cut()
        self._join()
        if self.rows:
            tokens = np.array([row.token for row in self.rows], dtype=np.int64)
            places = np.array([row.length for row in self.rows], dtype=np.int64)
            logits = self._decoder.step(tokens, places)
            for row in self.rows:
                row.length += 1
            self.steps += 1
            self._draw(self.rows, logits)

    def fail_all(self, error: Exception) -> None:
        for row in [*self.rows, *self._admission.waiting()]:
            row.ticket.failed(error)
        self._admission.discard(self._admission.waiting())
        self.rows.clear()

    def _cut(self) -> None:
        """Requests that are to end now, with what there is of them."""
        running = [row for row in self.rows if is_asked(row.request.cut)]
        waiting = [row for row in self._admission.waiting() if is_asked(row.request.cut)]
        self._leave(running)
        self._admission.discard(waiting)
        for row in [*running, *waiting]:
            row.ticket.done(self._generation(row, cut=True))

    def _join(self) -> None:
        longest = max((row.tokens for row in self.rows), default=0)
        joined = self._admission.take(len(self.rows), longest)
        if not joined:
            return
        longest = max(longest, *(row.tokens for row in joined))
        self._decoder.reserve(len(self.rows), len(self.rows) + len(joined), longest)
        started = self._now()
        fresh: dict[int, dict[bytes, list[Row]]] = {}
        known = {
            row.request.prompt_ids.tobytes(): index
            for index, row in enumerate(self.rows)
            if row.prompt_version == self.version
        }
        for row in joined:
            row.started, row.prompt_version = started, self.version
            key = row.request.prompt_ids.tobytes()
            if key in known:
                self._copy(row, known[key])
            else:
                fresh.setdefault(len(row.request.prompt_ids), {}).setdefault(key, []).append(row)
        for same_length in fresh.values():
            self._read(list(same_length.values()))

    def _copy(self, row: Row, source: int) -> None:
        """Its prompt is in the block already: all but the last token, which the next step takes for its logits."""
        row.length = len(row.request.prompt_ids) - 1
        row.token = int(row.request.prompt_ids[-1])
        row.read = row.started
        self._decoder.block.copy_row(source, len(self.rows), row.length)
        self.rows.append(row)

    def _read(self, groups: list[list[Row]]) -> None:
        """Prompts of one length, each read once however many rows want it."""
        first = len(self.rows)
        prompts = np.stack([group[0].request.prompt_ids for group in groups])
        logits = self._decoder.read_prompts(first, prompts)
        length, read = prompts.shape[1], self._now()
        self.rows.extend(group[0] for group in groups)
        for offset, group in enumerate(groups):
            for row in group[1:]:
                self._decoder.block.copy_row(first + offset, len(self.rows), length)
                self.rows.append(row)
        ordered = [group[0] for group in groups] + [row for group in groups for row in group[1:]]
        places = list(range(len(groups))) + [i for i, group in enumerate(groups) for _ in group[1:]]
        for row in ordered:
            row.length, row.read = length, read
        self._draw(ordered, logits[torch.tensor(places, device=logits.device)])

    def _draw(self, rows: list[Row], logits: Tensor) -> None:
        """Draws one token for each of `rows` from its logits float32[len(rows), v]; finished rows leave."""
        device = logits.device
        requests = [row.request for row in rows]
        ids, logprobs = sample(
            logits,
            torch.tensor([request.temperature for request in requests], device=device),
            torch.tensor([request.top_p for request in requests], device=device),
            torch.tensor([row.uniforms[len(row.ids)] for row in rows], dtype=torch.float64, device=device),
        )
        finished: list[tuple[Row, Generation | GenerationFault]] = []
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            if not np.isfinite(logprob):
                finished.append((row, self._broken(row, logprob)))
                continue
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.versions.append(self.version)
            row.token = token
            self.sampled_tokens += 1
            if row.request.heard is not None:
                row.request.heard(token)
            if token in row.request.stop_ids or len(row.ids) >= row.request.max_tokens:
                finished.append((row, self._generation(row)))
        self._leave([row for row, _ in finished])
        for row, result in finished:
            if isinstance(result, Generation):
                row.ticket.done(result)
            else:
                row.ticket.failed(result)

    def _broken(self, row: Row, logprob: float) -> GenerationFault:
        return GenerationFault(
            f"request {row.request.request_id}: policy {self.version} gives log-probability {logprob} at token "
            f"{len(row.ids)}; its weights are broken"
        )

    def _generation(self, row: Row, cut: bool = False) -> Generation:
        now = self._now()
        started = row.started or now
        read = row.read or started
        stopped = bool(row.ids) and row.ids[-1] in row.request.stop_ids
        return Generation(
            token_ids=np.array(row.ids, dtype=np.int32),
            logprobs=np.array(row.logprobs, dtype=np.float32),
            versions=runs_of(row.versions),
            stop_reason="cut" if cut else "stop" if stopped else "length",
            timings=EngineTimings(queued=started - row.submitted, prefill=read - started, decode=now - read),
        )

    def _leave(self, finished: list[Row]) -> None:
        """The last row takes the place of one that leaves."""
        for row in finished:
            place = next(index for index, other in enumerate(self.rows) if other is row)
            last = self.rows.pop()
            if last is not row:
                self._decoder.block.copy_row(len(self.rows), place, last.length)
                self.rows[place] = last
