"""What a run has done so far, from its messages: a pure state.

Invariant: it is a function of the messages seen, in any repetition; showing it asks nobody anything.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from dataclasses import dataclass, field

from shared.contracts import Control, Evaluation, Heartbeat, Message, Step
from shared.settings import Settings

RECENT_STEPS = 5
"""Steps whose mean duration predicts the time left."""
SILENT_STEPS = 5
"""So many one after another from which nothing was learnt are told: a person would wait for hours."""


@dataclass
class Progress:
    settings: Settings
    steps: dict[int, Step] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    events: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    held: dict[str, str] = field(default_factory=dict)
    """Domains that are held back, and why."""
    paused: str = ""
    """Why the guard has stopped the learner."""
    ended: str | None = None

    def observe(self, message: Message) -> str | None:
        """Takes in a message; a line worth printing when there is news."""
        match message:
            case Step() if message.step not in self.steps:
                self.steps[message.step] = message
                # A pause is told by itself, with what to do about it.
                notes = message.notes[1:] if message.action == "pause" else message.notes
                notes = (*notes, *self._silence(message))
                return "\n".join([self.step_line(message), *(f"         {note}" for note in notes)])
            case Evaluation() if message.name not in self.evaluations:
                told = {note for one in self.evaluations.values() for note in one.notes}
                self.evaluations[message.name] = message
                return "\n".join(
                    [evaluation_line(message), *(f"         {n}" for n in message.notes if n not in told)]
                )
            case Heartbeat():
                self.heartbeats[message.worker_id] = message
            case Control() if message.kind == "end" and self.ended is None:
                self.ended = message.reason or "ended"
            case Control() if message.kind in ("pause", "resume"):
                return self._pause_or_resume(message)
            case Control() if message.domain:
                return self._hold_or_lift(message)
        return None

    def _silence(self, step: Step) -> list[str]:
        """Told once, at the last of `SILENT_STEPS` in which no attempt was trained."""
        streak = 0
        while (one := self.steps.get(step.step - streak)) is not None and _is_silent(one, step):
            streak += 1
        if streak != SILENT_STEPS:
            return []
        means = [reward.mean for reward in step.rewards.values()]
        way = (
            "a harder difficulty"
            if means and min(means) > 0.5
            else "an sft stage before, an easier difficulty"
        )
        return [
            f"nothing was learnt in {streak} steps: in every group all attempts earned the same; what helps is {way} or "
            "a larger group_size"
        ]

    def so_far(self) -> list[str]:
        """Of a run that goes on: where it is, in a few lines."""
        latest, lines = self.latest, []
        if latest is not None:
            lines.append(f"goes on after step {latest.step}/{self.total_steps}")
        lines += [evaluation_line(one) for one in list(self.evaluations.values())[-1:]]
        lines += [self._held_line(name, reason) for name, reason in self.held.items()]
        return [*lines, *([self._paused_line()] if self.paused else [])]

    def _hold_or_lift(self, control: Control) -> str | None:
        if control.kind == "lift":
            return f"domain {control.domain} is lifted" if self.held.pop(control.domain, None) else None
        news = self.held.get(control.domain) != control.reason
        self.held[control.domain] = control.reason
        return self._held_line(control.domain, control.reason) if news else None

    def _held_line(self, domain: str, reason: str) -> str:
        return f"domain {domain} is held back: {reason} ({self.lifting(domain)})"

    def lifting(self, domain: str) -> str:
        """The command that lifts it, as it is typed."""
        return f"`temper domains lift {shlex.quote(str(self.settings.run_folder))} {shlex.quote(domain)}`"

    def _pause_or_resume(self, control: Control) -> str | None:
        before, self.paused = self.paused, control.reason if control.kind == "pause" else ""
        if before == self.paused:
            return None
        if not self.paused:
            return "the learner goes on"
        return self._paused_line()

    def _paused_line(self) -> str:
        return f"{self.paused}; look at it, then `temper resume {self.settings.run_folder}`"

    @property
    def total_steps(self) -> int:
        """A later stage that begins from other weights takes a step to do so."""
        return sum(
            stage.steps + bool(number and stage.start_from)
            for number, stage in enumerate(self.settings.stages)
        )

    @property
    def moves(self) -> int:
        """Grows with every step and evaluation."""
        return len(self.steps) + len(self.evaluations)

    @property
    def latest(self) -> Step | None:
        return self.steps[max(self.steps)] if self.steps else None

    def seconds_left(self) -> float | None:
        """From the mean of the last steps of the current stage; None before the first."""
        latest = self.latest
        if latest is None:
            return None
        recent = [s for s in self.steps.values() if s.stage_index == latest.stage_index][-RECENT_STEPS:]
        mean = sum(s.seconds.get("total", 0.0) for s in recent) / len(recent)
        return mean * (self.total_steps - latest.step)

    def lag(self, service: str) -> int:
        return sum(beat.lag for beat in self._alive() if beat.service == service)

    def tokens_per_second(self) -> float:
        return sum(
            beat.gauges.get("tokens_per_second", 0.0) for beat in self._alive() if beat.service == "rollout"
        )

    def waiting(self) -> list[str]:
        """`learner waits for rewards of 3 groups`, of every worker that says so."""
        return [f"{beat.worker_id} waits for {beat.waits_for}" for beat in self._alive() if beat.waits_for]

    def _alive(self) -> list[Heartbeat]:
        oldest = time.time() * 1000 - 10_000 * self.settings.telemetry.heartbeat_s
        return [b for b in self.heartbeats.values() if b.state != "stopped" and b.created_ms >= oldest]

    def step_line(self, step: Step) -> str:
        stage = self.settings.stages[step.stage_index]
        rewards = "  ".join(
            f"{name} {r.mean:.2f} ({r.passed}/{r.count})" for name, r in sorted(step.rewards.items())
        )
        seconds = step.seconds.get("total", 0.0)
        return (
            f"step {step.step:>3}/{self.total_steps}  {stage.kind} {step.stage_step}/{stage.steps}  loss {step.loss:+.4f}  "
            f"kl {step.kl:.4f}  entropy {step.entropy:.3f}  {seconds:.1f} s  "
            f"{step.effective_throughput:.1f} valid/s" + (f"  reward {rewards}" if rewards else "")
        )


def _is_silent(step: Step, like: Step) -> bool:
    """Of the stage of `like`. What a guard dropped was told by it."""
    return (
        step.stage_index == like.stage_index and not step.trained_trajectories and step.action == "continue"
    )


def at_work(beat: Heartbeat) -> bool:
    """Its start has succeeded: it is ready for work, or has finished some.

    `waiting` is no sign: a rollout waits for its first policy before it knows that it can serve one.
    """
    return beat.state == "idle" or (beat.processed > 0 and beat.state not in ("failed", "starting"))


def evaluation_line(evaluation: Evaluation) -> str:
    parts = [
        f"{name} {d.passed}/{d.count} = {d.passed / d.count:.0%}"
        if d.count
        else f"{name} no verdict" + (f" ({d.fault})" if d.fault else "")
        for name, d in sorted(evaluation.domains.items())
    ]
    return f"held-out {evaluation.name}: " + "  ".join(parts)
