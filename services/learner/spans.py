"""The learner's spans: one `step` a step, one `train` a trajectory that it resolved.

Invariant (10 of the design): a `train` span hangs under the span that judged the attempt and links to the step; the
step, which belongs to many tasks, is a trace of its own. They end when the step is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import Span

from services.learner.intake.groups import JudgedGroup
from shared.contracts import GroupFate, Step
from shared.telemetry.tracing import Tracing


class StepSpans:
    """The spans of one step, from its first micro-batch to its announcement."""

    def __init__(self, tracing: Tracing, step: int) -> None:
        self._tracing = tracing
        self._step = step
        self._open: dict[str, Span] = {}
        self._span = tracing.begin("step", root=True, attributes={"temper.step": step})
        self._link = Tracing.traceparent(self._span)

    def begin(self, groups: Sequence[JudgedGroup]) -> None:
        """The batch is being trained on."""
        for group in groups:
            for index in group.usable:
                slot = group.slots[index]
                span = self._train(slot.traceparent, group.group_id, slot.trajectory.trajectory_id)
                if span is not None:
                    self._open[slot.trajectory.trajectory_id] = span

    def finish(self, record: Step) -> None:
        """The step is durable."""
        self._span.set_attribute("temper.policy_version", record.policy_version)
        self._span.set_attribute("temper.stage", record.stage)
        self._span.set_attribute("temper.trained", record.trained_trajectories)
        for group in record.groups:
            self._finish_group(group)
        self.abandon()

    def abandon(self) -> None:
        """Ends whatever is open: the batch comes again, or did not become durable."""
        for span in self._open.values():
            span.end()
        self._open.clear()
        self._span.end()

    def _finish_group(self, group: GroupFate) -> None:
        for trajectory_id, fate, trace in zip(
            group.trajectory_ids, group.fates, group.traceparents, strict=True
        ):
            span = self._open.pop(trajectory_id, None) or self._train(trace, group.group_id, trajectory_id)
            if span is not None:
                span.set_attribute("temper.fate", fate)
                span.end()

    def _train(self, traceparent: str, group_id: str, trajectory_id: str) -> Span | None:
        if not traceparent:
            return None
        return self._tracing.begin(
            "train",
            parent=traceparent,
            links=[self._link] if self._link else [],
            attributes={
                "temper.group_id": group_id,
                "temper.trajectory_id": trajectory_id,
                "temper.step": self._step,
            },
        )
