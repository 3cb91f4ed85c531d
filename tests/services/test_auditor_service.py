"""The auditor inside the verifier, on a real broker: flags on rewards, domains held back with evidence, and lifted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from shared.contracts import Control, Heartbeat, Trajectory
from shared.domains.registry import load_domain
from shared.settings import Settings
from tests.services.audited import BY_PROCESS, FLAGGING, MOODY, ByProcess, Flagging, Moody
from tests.services.bench import Bench, bench, verifying
from tests.services.trajectories import trajectory
from tests.verification.faulty import FAULTY, Faulty

MakeSettings = Callable[..., Settings]
LONG = "It follows from the two lemmas above, read in the other order, that no such number can exist at all."
QUIET = {"share": 0.0, "repeat_share": 0.0, "rules": []}
SUM = load_domain("arithmetic").instance(7)
MOODY_AT = Moody().instance(3)
FAULTY_AT = Faulty().instance(3)
FLAGGING_AT = Flagging().instance(3)


async def holds(it: Bench, count: int = 1) -> list[Control]:
    found = await it.read(it.names.control, lambda seen: sum(d.message.kind == "hold" for d in seen) >= count)
    return [d.message for d in found if d.message.kind == "hold"]


async def send(it: Bench, attempts: Sequence[Trajectory]) -> None:
    for message in attempts:
        await it.attempt(message)


def test_two_verdicts_on_one_attempt_are_not_paid_and_hold_the_domain_back(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(
        domains=[{"name": MOODY}], auditor={"repeat_share": 1.0, "share": 0.0}, verifier={"concurrency": 1}
    )
    name = settings.run.name
    attempts = [trajectory(name, MOODY_AT, "1", group=f"g{n}") for n in range(2)]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await send(it, attempts)
            (hold,) = await holds(it)
            assert hold.domain == "moody" and "different verdicts" in hold.reason
            evidence = hold.body["evidence"]["attempts"]
            assert evidence[0]["trajectory_id"] in {message.trajectory_id for message in attempts}
            assert sorted(evidence[0]["verdicts"]) == ["failed", "passed"]
            assert (hold.body["cause"], hold.body["by"]) == ("flaky", "verifier-0")
            for reward in (await it.rewards(2)).values():
                assert (reward.verdict, reward.reward) == ("unverifiable", None)
                assert reward.flags == ("checks_disagree",)
                assert "disagree" in reward.reason
            lift = Control(run_id=name, kind="lift", domain="moody")
            await it.producer.send(it.names.control, lift)
            told, sent = 1, 2
            while told < 2 and sent < 30:  # nobody tells us when the verifier has read the lift
                await it.attempt(trajectory(name, MOODY_AT, "1", group=f"later-{sent}"))
                sent += 1
                await it.rewards(sent)
                told = len(await holds(it))
            assert told == 2, "what was counted before the lift is void, what comes after is not"
            beats: list[Heartbeat] = [
                d.message
                for d in await it.read(
                    it.names.workers, lambda seen: any(d.message.gauges.get("holds") == 2 for d in seen)
                )
            ]
            assert beats[-1].gauges["disagreed"] == beats[-1].gauges["flag.checks_disagree"]
            assert 3 <= beats[-1].gauges["disagreed"] <= sent

    asyncio.run(body())


def test_a_verdict_that_depends_on_the_process_is_seen_by_the_independent_check_only(
    make_settings: MakeSettings,
) -> None:
    instance = ByProcess().instance(3)

    async def verdicts(auditor: dict[str, object]) -> set[str]:
        settings = make_settings(domains=[{"name": BY_PROCESS}], auditor=auditor)
        async with bench(settings) as it, verifying(settings):
            await it.attempt(trajectory(settings.run.name, instance, "1"))
            return {reward.verdict for reward in (await it.rewards(1)).values()}

    assert asyncio.run(verdicts({"share": 0.0, "repeat_share": 1.0})) == {"partial"}
    assert asyncio.run(verdicts({"share": 1.0, "repeat_share": 0.0})) == {"unverifiable"}


def test_checks_that_mostly_end_in_faults_hold_their_domain_back(make_settings: MakeSettings) -> None:
    settings = make_settings(domains=[{"name": FAULTY}], auditor=QUIET)
    attempts = [trajectory(settings.run.name, FAULTY_AT, "raise", group=f"g{n}") for n in range(5)]
    sound = trajectory(settings.run.name, FAULTY_AT, Faulty().oracle(FAULTY_AT), group="g-sound")

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await send(it, [*attempts, sound])
            (hold,) = await holds(it)
            assert (hold.domain, hold.body["cause"]) == ("faulty", "faults")
            assert "faults of ours" in hold.reason and "checker bug" in hold.body["evidence"]["latest"][-1]
            rewards = await it.rewards(len(attempts) + 1)
            assert rewards.pop(sound.trajectory_id).verdict == "passed", "what is on its way is still judged"
            assert {(r.verdict, r.reward) for r in rewards.values()} == {("infrastructure", None)}

    asyncio.run(body())


def test_attempts_that_mostly_could_not_be_made_hold_their_domain_back(make_settings: MakeSettings) -> None:
    """Two of three tool calls fail for a reason of ours: rollout says so attempt by attempt, and somebody counts."""
    settings = make_settings(auditor=QUIET)
    name = settings.run.name
    broken = [
        trajectory(
            name, SUM, "", group=f"g{n}", stop_reason="infrastructure", fault="tool `shell`: no socket"
        )
        for n in range(12)
    ]
    given_up = [trajectory(name, SUM, "", group=f"c{n}", stop_reason="cancelled") for n in range(9)]
    sound = [trajectory(name, SUM, "1", group=f"s{n}") for n in range(3)]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await send(it, [*given_up, *sound])
            await it.rewards(len(given_up) + len(sound))
            await send(it, broken)
            (hold,) = await holds(it)
            assert (hold.domain, hold.body["cause"]) == ("arithmetic", "faults")
            assert "no attempt: tool `shell`: no socket" in hold.body["evidence"]["latest"][-1]
            evidence = hold.body["evidence"]
            assert evidence["checks"] - evidence["faults"] == len(sound), (
                "what was cancelled is nobody's fault"
            )

    asyncio.run(body())


@pytest.mark.parametrize("never", [[], ["arithmetic"]])
def test_a_domain_that_is_never_held_back_is_not(make_settings: MakeSettings, never: list[str]) -> None:
    settings = make_settings(auditor={**QUIET, "never_hold": never})
    stale = SUM.reference().model_copy(update={"instance_digest": "f" * 64})
    attempts = [trajectory(settings.run.name, SUM, "1", group=f"g{n}", domain=stale) for n in range(5)]

    async def body() -> None:
        async with bench(settings) as it:
            async with verifying(settings):
                await send(it, attempts)
                await it.rewards(len(attempts))
            events = await it.read(it.names.control, lambda seen: True)
            assert [d.message.domain for d in events] == ([] if never else ["arithmetic"])

    asyncio.run(body())


def test_flags_travel_on_rewards_and_a_rule_holds_the_domain_back(make_settings: MakeSettings) -> None:
    settings = make_settings(
        domains=[{"name": FLAGGING}],
        auditor={**QUIET, "rules": [{"flag": "reward_path_written", "share": 0.5, "least": 6}]},
    )
    name = settings.run.name
    honest = [trajectory(name, FLAGGING_AT, "1", group=f"h{n}") for n in range(3)]
    cheats = [trajectory(name, FLAGGING_AT, "cheat", group=f"c{n}") for n in range(5)]

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await send(it, [*honest, *cheats])
            (hold,) = await holds(it)
            assert (hold.domain, hold.body["cause"]) == ("flagging", "flags")
            evidence = hold.body["evidence"]
            assert evidence["flag"] == "reward_path_written" and evidence["flagged"] >= 3
            assert set(evidence["trajectory_ids"]) <= {message.trajectory_id for message in cheats}
            rewards = await it.rewards(len(honest) + len(cheats))
            assert {rewards[m.trajectory_id].flags for m in cheats} == {("reward_path_written",)}
            assert {rewards[m.trajectory_id].flags for m in honest} == {()}

    asyncio.run(body())


def test_a_group_that_recites_one_long_answer_is_flagged_outside_the_stable_record(
    make_settings: MakeSettings,
) -> None:
    settings = make_settings(domains=[{"name": FLAGGING}], auditor=QUIET, verifier={"concurrency": 1})
    name = settings.run.name
    attempts = [trajectory(name, FLAGGING_AT, LONG, sample=n, group="recites") for n in range(4)]
    again = trajectory(name, FLAGGING_AT, LONG, group="alone", trajectory_id=attempts[3].trajectory_id)

    async def body() -> None:
        async with bench(settings) as it, verifying(settings):
            await send(it, attempts)
            rewards = await it.rewards(4)
            flags = [rewards[message.trajectory_id].stream_flags for message in attempts]
            assert flags == [(), (), ("duplicate_answers",), ("duplicate_answers",)]
            flagged = rewards[attempts[3].trajectory_id]
            assert flagged.flags == () and b"duplicate" not in flagged.stable_bytes()
            await it.attempt(again)
            found = await it.read(it.names.rewards, lambda seen: len(seen) >= 5)
            assert found[-1].message.stream_flags == ()

    asyncio.run(body())
