"""A whole run in virtual time: scheduler, fleet, verifier and learner.

Real: `SchedulerState` with its `TrainingPlan`, `TaskBuilder`, the partitioner, and what `rollout.py` and `learner.py`
name. Modelled: the bus and the verifier as delays; every group has its own chance of success.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from benchmarks.long_tail import CALIBRATED, STEP_SECONDS, Lengths
from benchmarks.simulated.clock import VirtualClock
from benchmarks.simulated.learner import SimulatedLearner, Told
from benchmarks.simulated.rollout import SimulatedRollout
from services.scheduler.service import SchedulerState
from services.scheduler.tasks import TaskBuilder
from services.verifier.rewards import fault_of_rollout
from shared.bus.partitioning import KeyPartitioner
from shared.contracts import Headers, Message, Reward, Trajectory
from shared.domains.registry import load_domain
from shared.settings import Settings, parse_settings

BUS_S = 0.02
"""From a send to its receiver."""
VERIFY_S = 0.1
LOAD_S = 0.5
"""From an announcement to the first token of the new policy."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs. `supply`: tokens a second that all rows together sample, over those that the learner trains on."""

    workers: int
    rows: int = 8
    group_size: int = 8
    oversample: int = 0
    waves: float = 1.0
    """Attempts of a step over rows of the fleet."""
    supply: float = 1.5
    partitions_each: int = 4
    lengths: Lengths = CALIBRATED
    step_s: float = STEP_SECONDS
    learner_s: float = 0.0
    """Seconds of every step of the learner, where they are not to follow from `supply`."""

    @property
    def groups_per_step(self) -> int:
        return max(1, round(self.workers * self.rows * self.waves / self.group_size))

    @property
    def token_s(self) -> float:
        """Seconds of the learner a token."""
        return self.supply * self.step_s / (self.workers * self.rows)


def settings_of(fleet: Fleet, max_lag: int, steps: int) -> Settings:
    return parse_settings(
        {
            "run": {"name": "virtual"},
            "bus": {"partitions": fleet.workers * fleet.partitions_each},
            "model": {"path": "none"},
            "domains": [{"name": "arithmetic", "max_tokens": fleet.lengths.most}],
            "stages": [
                {
                    "kind": "rl",
                    "steps": steps,
                    "groups_per_step": fleet.groups_per_step,
                    "group_size": fleet.group_size,
                    "oversample": fleet.oversample,
                }
            ],
            "scheduler": {"max_lag": max_lag, "group_deadline_s": 1e6},
            "evaluation": {"at_start": False},
            "learner": {"max_buffered_groups": 4 * fleet.groups_per_step},
        }
    )


class SimulatedLoop:
    def __init__(self, fleet: Fleet, max_lag: int, steps: int, seed: int = 0) -> None:
        self._settings = settings = settings_of(fleet, max_lag, steps)
        self._fleet, self._seed = fleet, seed
        self._clock = VirtualClock()
        domains = {"arithmetic": load_domain("arithmetic")}
        self._scheduler = SchedulerState(settings, {})
        self._scheduler.policy_version = 0
        self._tasks = TaskBuilder(settings, domains)
        self._partitioner = KeyPartitioner()
        self._rollouts = [
            SimulatedRollout(
                f"rollout-{number}",
                self._clock,
                fleet.lengths,
                rows=fleet.rows,
                concurrency=settings.rollout.concurrency,
                step_s=fleet.step_s,
                seed=seed,
                send=self._judge,
            )
            for number in range(fleet.workers)
        ]
        self._learner = SimulatedLearner(
            settings,
            self._clock,
            token_s=fleet.token_s,
            fixed_s=fleet.learner_s,
            tell=self._tell,
            publish=self._publish,
        )

    def run(self) -> Told:
        self._clock.after(0.0, self._act)
        self._clock.run(lambda: self._learner.finished)
        return self._learner.told

    @property
    def rollout_busy_share(self) -> float:
        rows = self._fleet.workers * self._fleet.rows
        return sum(rollout.row_seconds for rollout in self._rollouts) / (rows * self._clock.now)

    def _act(self) -> None:
        now = self._clock.now
        for plan in self._scheduler.plan.admit(now):
            task = self._tasks.training(plan, self._scheduler.newest_version, int(now * 1000))
            place = self._partitioner.choose(task.key().encode(), self._settings.bus.partitions)
            rollout = self._rollouts[place % len(self._rollouts)]
            self._clock.after(BUS_S, lambda rollout=rollout, task=task: rollout.offer(task))  # type: ignore[misc]

    def _tell(self, message: Message) -> None:
        def heard() -> None:
            self._scheduler.observe(message, Headers())
            self._act()

        self._clock.after(BUS_S, heard)

    def _publish(self, version: int) -> None:
        for rollout in self._rollouts:
            self._clock.after(LOAD_S, rollout.load)

    def _judge(self, trajectory: Trajectory) -> None:
        reward = self._reward(trajectory)

        def heard() -> None:
            self._scheduler.observe(reward, Headers())
            self._learner.receive(trajectory, reward)

        self._clock.after(BUS_S + VERIFY_S, heard)

    def _reward(self, trajectory: Trajectory) -> Reward:
        slot = trajectory.slot
        chance = Random(f"{self._seed}/{slot.group_id}").uniform(0.2, 0.8)
        passed = Random(f"{self._seed}/{slot}").random() < chance
        fault = fault_of_rollout(trajectory)
        return Reward(
            trajectory_id=trajectory.trajectory_id,
            slot=slot,
            stage="rl",
            stage_index=0,
            purpose="train",
            domain=trajectory.domain.name,
            domain_version=1,
            verdict="infrastructure" if fault else "passed" if passed else "failed",
            reward=None if fault else float(passed),
        )
