"""What a request may ask of an engine that holds a model.

Invariant: an engine samples nothing for a request that does not pass here: not longer than it can hold, and of ids that
its model has.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.rollout.engines.base import GenerateRequest, GenerationFault, Ids, RequestTooLongError


@dataclass(frozen=True, slots=True)
class Bounds:
    """longest: tokens of one request, prompt and completion together. vocabulary: ids are below it."""

    longest: int
    vocabulary: int

    def check(self, request: GenerateRequest) -> None:
        """Raises `RequestTooLongError`, `GenerationFault`."""
        if request.tokens > self.longest:
            raise RequestTooLongError(
                f"request {request.request_id}: prompt {len(request.prompt_ids)} + {request.max_tokens} tokens pass "
                f"{self.longest}, the smaller of the model's context and rollout.max_batch_tokens"
            )
        self.check_ids(request.request_id, request.prompt_ids)

    def check_ids(self, name: str, ids: Ids) -> None:
        """Raises `GenerationFault`."""
        if not len(ids) or int(ids.max()) >= self.vocabulary:
            raise GenerationFault(
                f"request {name}: the prompt is empty or holds an id outside the vocabulary of {self.vocabulary}: "
                "tokenizer and model do not belong together"
            )
