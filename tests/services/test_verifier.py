"""The verifier service on a real broker: verdicts, faults that are retried and never become a number, draining."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.verifier.service import run
from shared.bus.delivery import Delivery
from shared.bus.reader import LogReader
from shared.bus.records import header
from shared.contracts import Control, Headers, Heartbeat, Trajectory
from shared.domains.base import HELD_OUT_SEED
from shared.domains.registry import load_domain
from shared.errors import ConfigError
from shared.settings import Settings
from shared.telemetry.file_exporter import trace_file_name
from shared.telemetry.propagation import span_context_of
from tests.services.bench import bench, verifying
from tests.services.trajectories import trajectory
from tests.verification.faulty import FAULTY, Faulty

MakeSettings = Callable[..., Settings]
SUM = load_domain("arithmetic").instance(7)
RIGHT = load_domain("arithmetic").oracle(SUM)
COPY = Faulty().instance(3)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_every_attempt_gets_its_verdict_and_nothing_else_does(make_settings: MakeSettings) -> None:
    settings = make_settings()
    name = settings.run.name
    attempts = {
        "right": trajectory(name, SUM, RIGHT),
        "wrong": trajectory(name, SUM, "0", sample=1, group="eval-start-arithmetic-00001", purpose="eval"),
        "late": trajectory(name, SUM, "1", stop_reason="deadline"),
        "cut": trajectory(name, SUM, RIGHT, stop_reason="length"),
        "absent": trajectory(name, SUM, "", stop_reason="infrastructure", fault="engine died", sequences=()),
        "cancelled": trajectory(name, SUM, RIGHT, stop_reason="cancelled"),
    }
    ignored = {
        "demonstration": trajectory(
            name, SUM, RIGHT, sampling_mode="demonstration", stop_reason="demonstration"
        ),
        "foreign": trajectory("another-run", SUM, RIGHT),
    }

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            for message in (*ignored.values(), *attempts.values()):
                await it.attempt(message, priority="high" if message.purpose == "eval" else "normal")
            rewards = await it.rewards(len(attempts))
            found = {title: rewards[message.trajectory_id] for title, message in attempts.items()}
            verdicts = {title: (reward.verdict, reward.reward) for title, reward in found.items()}
            assert verdicts == {
                "right": ("passed", 1.0),
                "wrong": ("failed", 0.0),
                "late": ("failed", 0.0),
                "cut": ("passed", 1.0),
                "absent": ("infrastructure", None),
                "cancelled": ("infrastructure", None),
            }
            assert len(rewards) == len(attempts)
            assert found["late"].reason.startswith("cut off at its deadline: wrong integer")
            assert "engine died" in found["absent"].reason
            first = found["wrong"]
            assert (first.slot, first.purpose) == (attempts["wrong"].slot, "eval")
            assert (first.domain, first.domain_version, first.policy_version) == ("arithmetic", 1, 4)
            assert (first.worker_id, first.attempts) == ("verifier-0", 1)
            assert first.verifier_version and first.created_ms and 0 < first.wall_seconds < 5

    asyncio.run(body())


def test_a_reward_travels_with_its_group_and_its_trace(make_settings: MakeSettings) -> None:
    settings = make_settings(telemetry={"traces": "file"})
    message = trajectory(settings.run.name, SUM, RIGHT)

    async def body() -> Delivery[Any]:
        async with bench(settings) as it, verifying(settings):
            await it.attempt(message, headers=Headers(traceparent=PARENT))
            (found,) = await it.read(it.names.rewards, bool)
            return found

    delivery = asyncio.run(body())
    assert delivery.key == message.slot.group_id
    headers = delivery.headers
    assert (headers.run_id, headers.group_id) == (settings.run.name, message.slot.group_id)
    assert (headers.purpose, headers.policy_version) == ("train", 4)
    here, above = span_context_of(headers.traceparent), span_context_of(PARENT)
    assert here is not None and above is not None
    assert here.trace_id == above.trace_id and here.span_id != above.span_id
    lines = (
        (settings.run_folder / "traces" / trace_file_name("verifier", "verifier-0")).read_text().splitlines()
    )
    spans = [json.loads(line) for line in lines]
    verify = next(span for span in spans if span["name"] == "verify" and span.get("end_ns"))
    assert (verify["span_id"], verify["parent_span_id"]) == (f"{here.span_id:016x}", f"{above.span_id:016x}")
    assert verify["attributes"]["temper.verdict"] == "passed"
    assert verify["attributes"]["temper.trajectory_id"] == message.trajectory_id


def test_a_fault_is_retried_then_dead_and_never_a_number(make_settings: MakeSettings) -> None:
    settings = make_settings(domains=[{"name": FAULTY}], verifier={"check_seconds": 0.4, "children": 2})
    name = settings.run.name
    expected = {
        "raise": ("infrastructure", "KeyError: 'checker bug'"),
        "crash": ("infrastructure", "ended by SIGSEGV"),
        "number": ("infrastructure", "returned float"),
        "sleep": ("timeout_infra", "passed its budget of 0.4 s"),
    }
    attempts = {
        behaviour: trajectory(name, COPY, behaviour, group=f"g-{behaviour}") for behaviour in expected
    }
    sound = trajectory(name, COPY, Faulty().oracle(COPY), group="g-sound")
    stale = COPY.reference().model_copy(update={"instance_digest": "f" * 64})
    changed = trajectory(name, COPY, "1", group="g-changed", domain=stale)

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            for message in (*attempts.values(), changed, sound):
                await it.attempt(message)
            rewards = await it.rewards(len(attempts) + 2)
            assert rewards[sound.trajectory_id].verdict == "passed"
            for behaviour, (verdict, words) in expected.items():
                reward = rewards[attempts[behaviour].trajectory_id]
                assert (reward.verdict, reward.reward) == (verdict, None), behaviour
                assert words in reward.reason and "after 3 attempts" in reward.reason
                assert reward.attempts == settings.bus.max_attempts
            mismatch = rewards[changed.trajectory_id]
            assert mismatch.verdict == "infrastructure"
            assert "f" * 64 in mismatch.reason and COPY.digest() in mismatch.reason
            dead = await it.read(it.names.dead("verifier"), lambda found: len(found) >= len(attempts) + 1)
            kinds = {d.message.trajectory_id: header(d.record.headers, "error.type") for d in dead}
            assert kinds == {
                attempts["raise"].trajectory_id: "VerificationFault",
                attempts["crash"].trajectory_id: "CheckerDied",
                attempts["number"].trajectory_id: "VerificationFault",
                attempts["sleep"].trajectory_id: "CheckTimedOut",
                changed.trajectory_id: "VerificationFault",
            }

    asyncio.run(body())


def test_a_message_that_is_no_trajectory_is_a_dead_letter_and_stops_nothing(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings()
    right = trajectory(settings.run.name, SUM, RIGHT)

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await it.attempt(Control(run_id=settings.run.name, kind="end"))
            await it.producer.send_raw(
                it.names.trajectories("single_turn", "normal"), b"k", b"\xff{",
                [("schema", b"temper.trajectory/1"), ("run_id", settings.run.name.encode())],
            )  # fmt: skip
            await it.attempt(right)
            assert (await it.rewards(1))[right.trajectory_id].verdict == "passed"
            reader = LogReader(settings, "bench", [it.names.dead("verifier")])
            found: list[Any] = []
            async with asyncio.timeout(20):
                while len(found) + reader.undecodable < 2:
                    found += await reader.poll(0.2)
            await reader.close()
            assert header(found[0].record.headers, "error.type") == "ContractError"
            assert "is for trajectories only" in header(found[0].record.headers, "error.message")

    asyncio.run(body())


def test_a_restarted_verifier_goes_on_where_the_last_one_stopped(make_settings: MakeSettings) -> None:
    settings = make_settings()
    attempts = [trajectory(settings.run.name, SUM, RIGHT, sample=n % 2, group=f"g{n}") for n in range(20)]

    async def body() -> None:
        async with bench(settings) as it:
            for half in (attempts[:10], attempts[10:]):
                wanted = {message.trajectory_id for message in half}
                async with verifying(settings):
                    for message in half:
                        await it.attempt(message)
                    await it.read(
                        it.names.rewards,
                        lambda found, w=wanted: w <= {d.message.trajectory_id for d in found},
                    )
            found = await it.read(it.names.rewards, lambda found: len(found) >= len(attempts))
            assert sorted(d.message.trajectory_id for d in found) == sorted(m.trajectory_id for m in attempts)

    asyncio.run(body())


def test_the_end_of_the_run_ends_the_verifier_and_an_abandoned_group_costs_nothing(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings()
    name = settings.run.name
    wanted = trajectory(name, SUM, RIGHT, group="g-wanted")
    unwanted = trajectory(name, SUM, RIGHT, group="g-unwanted")

    async def body() -> None:
        async with bench(settings) as it:
            await it.producer.send(it.names.control, Control(run_id="another-run", kind="end"))
            await it.producer.send(
                it.names.control, Control(run_id=name, kind="abandon", groups=("g-unwanted",))
            )
            async with verifying(settings) as running:
                await it.read(it.names.workers, lambda found: any(d.message.state == "idle" for d in found))
                assert not running.done(), "the end of another run is no end"
                await it.attempt(unwanted)
                await it.attempt(wanted)
                assert set(await it.rewards(1)) == {wanted.trajectory_id}
                await it.producer.send(it.names.control, Control(run_id=name, kind="end", reason="done"))
                await asyncio.wait_for(running, 15.0)
            beats: list[Heartbeat] = [
                d.message
                for d in await it.read(
                    it.names.workers, lambda found: any(d.message.state == "stopped" for d in found)
                )
            ]
            assert {beat.service for beat in beats} == {"verifier"}
            assert beats[-1].state == "stopped" and beats[-1].processed >= 2
            assert beats[-1].gauges["verdict.passed"] == 1

    asyncio.run(body())


def test_a_domain_that_cannot_be_loaded_ends_the_start_in_one_line(make_settings: MakeSettings) -> None:
    settings = make_settings(domains=[{"name": "arithmetics"}])

    async def body() -> None:
        with pytest.raises(ConfigError, match="did you mean 'arithmetic'"):
            await asyncio.wait_for(run(settings, "verifier-0", asyncio.Event()), 20.0)

    asyncio.run(body())


def test_a_stop_waits_for_the_check_that_runs(make_settings: MakeSettings) -> None:
    settings = make_settings(domains=[{"name": FAULTY}])
    slow = trajectory(settings.run.name, COPY, "slow")

    async def body() -> None:
        async with bench(settings) as it:
            async with verifying(settings):
                await it.read(it.names.workers, lambda found: any(d.message.state == "idle" for d in found))
                await it.attempt(slow)
                await it.read(it.names.workers, lambda found: any(d.message.in_flight for d in found))
            (reward,) = (await it.rewards(1)).values()
            assert (reward.verdict, reward.attempts) == ("passed", 1)

    asyncio.run(body())


def test_held_out_instances_are_verified_like_any_other(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(domains=[{"name": name} for name in ("arithmetic", "extraction", "sequences")])
    messages: list[Trajectory] = []
    for declared in settings.domains:
        domain = load_domain(declared.name)
        instance = domain.instance(HELD_OUT_SEED + 5)
        messages += [
            trajectory(settings.run.name, instance, domain.oracle(instance), group=f"{declared.name}-right"),
            trajectory(
                settings.run.name, instance, domain.do_nothing(instance), group=f"{declared.name}-none"
            ),
        ]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            for message in messages:
                await it.attempt(message)
            rewards = await it.rewards(len(messages))
            for message in messages:
                right = message.slot.group_id.endswith("right")
                assert rewards[message.trajectory_id].verdict == ("passed" if right else "failed")

    asyncio.run(body())
