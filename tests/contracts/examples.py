"""One full example of every message: the source of the golden bytes."""

from __future__ import annotations

from shared.contracts import (
    Canary,
    ChatMessage,
    Control,
    DomainRef,
    DomainResult,
    DomainReward,
    Evaluation,
    GroupFate,
    Heartbeat,
    Limits,
    Message,
    Notice,
    Policy,
    Reward,
    RoleSpan,
    Sampling,
    Sequence,
    Slot,
    Step,
    Task,
    TensorEntry,
    Timings,
    ToolCall,
    Trajectory,
    VersionSpan,
    WeightsRef,
)  # fmt: skip

SLOT = Slot(run_id="demo", group_id="1-rl-0000007", sample_index=3)
DOMAIN = DomainRef(
    name="arithmetic",
    version=1,
    seed=42,
    difficulty={"digits": 2},
    instance_digest="ab" * 32,
    cell="text/none/1/integer",
)
SEQUENCE = Sequence(
    token_ids=[1, 17, 4093, 2],
    loss_mask=[0, 0, 1, 1],
    logprobs=[0.0, 0.0, -0.5, -0.125],
    version_spans=(
        VersionSpan(length=2, version=-1),
        VersionSpan(length=1, version=4),
        VersionSpan(length=1, version=5),
    ),
    role_spans=(RoleSpan(length=2, role="user"), RoleSpan(length=2, role="assistant")),
)
FATE = GroupFate(
    group_id="1-rl-0000007",
    domain="arithmetic",
    samples=(0, 1),
    fates=("trained", "stale"),
    trajectory_ids=("t0", "t1"),
    traceparents=("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ""),
)

EXAMPLES: tuple[Message, ...] = (
    Task(
        run_id="demo", group_id="1-rl-0000007", stage="rl", stage_index=1, domain=DOMAIN, workload="single_turn",
        priority="normal", purpose="train", messages=(ChatMessage(role="user", content="What is 4 + 7? ✓"),),
        files={"notes.txt": "a"}, tools=("python",), sampling=Sampling(samples=4, group_size=8, seed=9),
        limits=Limits(turns=2), min_policy_version=3, attempt=2, created_ms=1700000000000, deadline_ms=1700000300000,
    ),
    Trajectory(
        trajectory_id="0f" * 16, slot=SLOT, attempt=2, stage="rl", stage_index=1, purpose="train",
        workload="single_turn", priority="normal", domain=DOMAIN, sampling=Sampling(samples=4, group_size=8),
        sampling_mode="sampled", sequences=(SEQUENCE,), stop_reason="stop",
        tool_calls=(ToolCall(name="python", arguments={"code": "1"}, result="1", seconds=0.5),), final_answer="11",
        artifacts={"out.stl": "file:///o/1"}, first_version=4, last_version=5, timings=Timings(decode=1.5, total=2.0),
        worker_id="rollout-0", created_ms=1700000001000, deadline_ms=1700000300000,
    ),
    Reward(
        trajectory_id="0f" * 16, slot=SLOT, stage="rl", stage_index=1, purpose="train", domain="arithmetic",
        domain_version=1, verdict="passed", reward=1.0, components={"exact": 1.0}, reason="equal", flags=("chatty",),
        policy_version=5, verifier_version="0.1.0", worker_id="verifier-0", wall_seconds=0.25, cpu_seconds=0.125,
        attempts=2, created_ms=1700000002000,
    ),
    Policy(
        run_id="demo", version=5, step=5, stage="rl", stage_index=1,
        weights=WeightsRef(
            uri="file:///o/w.safetensors", sha256="cd" * 32, size_bytes=100,
            tensors=(TensorEntry(name="w", dtype="F32", shape=(2, 3), sha256="ef" * 32),),
        ),
        canary=Canary(token_ids=[1, 2, 3], lengths=[2, 1], logprobs=[0.0, -1.5, 0.0]),
        checkpoint_uri="file:///o/5", model_uri="file:///m", created_ms=1700000003000,
    ),
    Step(
        run_id="demo", step=5, stage="rl", stage_index=1, stage_step=2, lineage="a", policy_version=5, groups=(FATE,),
        loss=0.25, loss_terms={"policy": 0.25}, kl=0.01, entropy=1.5, clip_fraction=0.1, gradient_norm=0.9,
        effective_sample_size=7.5, learning_rate=1e-5, staleness_mean=0.5, staleness_max=1,
        rewards={"arithmetic": DomainReward(mean=0.5, passed=4, count=8)}, tokens={"trained": 12, "stale": 3},
        prompt_tokens=90, seconds={"wait": 1.0, "compute": 2.0, "total": 3.0}, trained_trajectories=8,
        trained_tokens=12, created_ms=1700000004000,
    ),
    Notice(run_id="demo", groups=(FATE,)),
    Heartbeat(
        run_id="demo", worker_id="rollout-0", service="rollout", state="waiting", waits_for="the first policy",
        policy_version=5, in_flight=3, processed=10, failures=1, lag=7, gauges={"tokens_per_second": 180.0}, pid=12,
        created_ms=1700000005000,
    ),
    Control(run_id="demo", kind="abandon", reason="past every attempt", groups=("1-rl-0000007",), body={"a": 1}),
    Evaluation(
        run_id="demo", name="start", stage_index=0, step=0, first_version=0, last_version=0,
        domains={"arithmetic": DomainResult(passed=3, count=64, mean_reward=3 / 64)}, seconds=9.5,
    ),
)  # fmt: skip
