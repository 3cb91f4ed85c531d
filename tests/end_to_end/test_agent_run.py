"""A whole run that is trained through an agent program: `temper up`, a door in each sandbox, the audit.

The program knows the sum and says it where the policy's second answer is even, so that an untrained policy is right in
every second attempt, and groups have signal from the first step on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.contracts import Policy, Reward, Step, Trajectory
from temper.models.tiny import make_tiny_model
from tests.end_to_end.local_run import LocalRun, audited, of, told
from tests.rollout.agent.programs import HEAD

pytestmark = pytest.mark.slow

PROGRAM = (
    HEAD
    + """
import re
numbers = map(int, re.findall(r"[0-9]+", sys.argv[1]))
messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(2):
    answer = chat(messages)
    messages += [answer, {"role": "user", "content": "Are you sure?"}]
odd = sum(map(ord, answer["content"])) % 2
print(sum(numbers) + odd)
"""
)
RUN = """
[[domains]]
name = "arithmetic"
max_tokens = 3
difficulty = {{ digits = 1, operations = ["+"] }}
[domains.episode]
turns = 3
context_tokens = 256
[domains.episode.agent]
command = ["python3", ".agent/main.py", "{{prompt}}"]
folder = "{folder}"
answer = "stdout"
[[stages]]
kind = "rl"
steps = 2
groups_per_step = 2
group_size = 4
learning_rate = 1e-4
[evaluation]
instances_per_domain = 2
at_start = false
"""


def test_what_a_policy_says_to_a_program_is_recorded_judged_and_learnt_from(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.mkdir()
    (program / "main.py").write_text(PROGRAM)
    model = make_tiny_model(tmp_path / "tiny")
    with LocalRun(tmp_path, model, RUN.format(folder=program)) as run:
        # A program that a busy machine starts late is not to meet its deadline.
        assert run.start(TEMPER_SCHEDULER__GROUP_DEADLINE_S="200").wait() == 0
        seen = told(run)
        attempts = of(seen, Trajectory)
        assert {made.purpose for made in attempts} == {"train", "eval"}
        for made in attempts:
            assert made.stop_reason in ("stop", "length") and made.turns == 2, made.artifacts
            assert made.artifacts["agent"] == "exit code 0; 2 requests answered"
            assert made.artifacts["agent/stdout"].strip() == made.final_answer
            assert 2 <= made.sampled_tokens() <= 6
        assert {reward.verdict for reward in of(seen, Reward)} == {"passed", "failed"}
        steps = of(seen, Step)
        assert [step.stage for step in steps] == ["rl", "rl"]
        assert all(step.trained_trajectories == 8 and step.tokens["trained"] for step in steps)
        assert {policy.version for policy in of(seen, Policy)} == {0, 1, 2}
        audited(run)
