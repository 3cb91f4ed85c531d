"""An attempt in lines, as it happens, and its verdict.

Invariant: see `terminal`. Lines of ours begin at the edge; nothing of the policy's does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from services.rollout.engines.base import GenerateRequest, Generation
from shared.contracts import Reward, Task, ToolCall, Trajectory
from shared.plain_errors import counted
from shared.telemetry.text import one_line
from temper.attempt.episode import Watching
from temper.attempt.terminal import BAR, Pen, barred

_MOST_ARGUMENT = 200


class Live:
    """Prints one attempt while it is made. Several at once would be mixed: they are shown by `row` afterwards."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._pen = Pen(decode)
        self._turn = 0
        self._began = time.monotonic()

    def watching(self) -> Watching:
        return Watching(self._asked, self._pen.token, self._said, self._told)

    def _asked(self, request: GenerateRequest) -> None:
        self._turn += 1
        self._began = time.monotonic()
        before = counted(len(request.prompt_ids), "token")
        print(f"[turn {self._turn}: the policy, after {before}]", flush=True)

    def _said(self, made: Generation) -> None:
        self._pen.end()
        seconds = time.monotonic() - self._began
        sampled = counted(len(made.token_ids), "token")
        print(f"[{sampled}, {made.stop_reason}, {seconds:.2f} s]", flush=True)

    def _told(self, call: ToolCall) -> None:
        print(f"[tool {call_line(call)}: {call.seconds:.2f} s]")
        print(barred(f"error: {call.error}" if call.error else call.result), flush=True)


def call_line(call: ToolCall) -> str:
    """Its name and arguments, on one line and not too long."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    short = arguments if len(arguments) <= _MOST_ARGUMENT else f"{arguments[:_MOST_ARGUMENT]}…"
    return one_line(f"{call.name} {short}")


def opening(policy: str, task: Task) -> str:
    """What is attempted, by whom, and what the policy is given."""
    domain, sampling, limits = task.domain, task.sampling, task.limits
    lines = [
        f"policy {policy}",
        f"{domain.name} version {domain.version}, seed {domain.seed}, difficulty {json.dumps(domain.difficulty)}",
        f"temperature {sampling.temperature:g}, {counted(limits.turns, 'turn')} of "
        f"{counted(sampling.max_tokens, 'token')}, context "
        f"{limits.context_tokens}, {limits.wall_seconds:g} s"
        + (f"; tools {', '.join(task.tools)}" if task.tools else "")
        + (f"; files {', '.join(map(one_line, task.files))}" if task.files else ""),
    ]
    for message in task.messages:
        lines += [f"[{message.role}]", barred(message.content)]
    return "\n".join(lines)


def verdict(trajectory: Trajectory, reward: Reward) -> str:
    """Everything that the verifier says of one attempt."""
    number = "" if reward.reward is None else f", reward {reward.reward:g}"
    lines = [
        f"{reward.verdict}{number}" + (f": {one_line(reward.reason)}" if reward.reason else ""),
        f"ended by {trajectory.stop_reason}, {_size(trajectory)}, checked in {reward.wall_seconds:.2f} s",
    ]
    if trajectory.artifacts:
        lines.append(f"left behind: {', '.join(map(one_line, sorted(trajectory.artifacts)))}")
    lines += [f"component {one_line(name)}: {value:g}" for name, value in reward.components.items()]
    lines += [f"flag {one_line(flag)}" for flag in reward.flags]
    return "\n".join(lines)


def row(trajectory: Trajectory, reward: Reward) -> str:
    """One of several samples on one line."""
    number = "   –" if reward.reward is None else f"{reward.reward:4.2f}"
    answer = one_line(trajectory.final_answer)
    short = answer if len(answer) <= 60 else f"{answer[:59]}…"
    return f"{trajectory.slot.sample_index:4} {reward.verdict:14} {number}  {_size(trajectory)}  {BAR}{short}"


def _size(trajectory: Trajectory) -> str:
    turns, calls = trajectory.turns or 1, len(trajectory.tool_calls)
    tools = f", {calls} tool calls" if calls or trajectory.malformed_calls else ""
    malformed = f" and {trajectory.malformed_calls} malformed" if trajectory.malformed_calls else ""
    return f"{trajectory.sampled_tokens()} tokens in {turns} turns{tools}{malformed}"
