"""Domains that are wrong on purpose. Tests only: they are reached by place, never installed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.domains.base import Attempt, Difficulty, Domain, Draft, Instance, Judgement, NearMiss
from shared.domains.draw import Draw
from shared.domains.tools import Bench, ToolFunction

FAULTY = "tests.verification.faulty:Faulty"


class NoDifficulty(Difficulty):
    """Nothing to set."""


class Copying(Domain[NoDifficulty]):
    """The sound one that the others spoil: "Copy 17"."""

    name = "copying"
    difficulty_model = NoDifficulty

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        number = str(draw.integer(0, 9999))
        return Draft(prompt=f"Copy {number}", expected=number)

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        right = attempt.final_answer == instance.expected
        return Judgement.passed() if right else Judgement.failed("not the number")

    def oracle(self, instance: Instance) -> str:
        return str(instance.expected)

    def do_nothing(self, instance: Instance) -> str:
        return ""

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return (NearMiss(f"{instance.expected}0", "failed"),)


def _raise() -> Judgement:
    raise KeyError("checker bug")


def _spin() -> Judgement:
    while True:
        pass


def _busy() -> Judgement:
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    return Judgement.passed()


def _sleep() -> Judgement:
    time.sleep(600)
    return Judgement.passed()


def _slow() -> Judgement:
    time.sleep(1.0)
    return Judgement.passed()


def _crash() -> Judgement:
    os.kill(os.getpid(), signal.SIGSEGV)
    return Judgement.passed()


def _exit() -> Judgement:
    sys.exit(0)


def _leave() -> Judgement:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def _memory() -> Judgement:
    return Judgement.failed(str(len(bytearray(10 << 30))))


def _recursion() -> Judgement:
    return _recursion()


def _chatter() -> Judgement:
    for _ in range(2000):
        print("x" * 1000)
        print("y" * 1000, file=sys.stderr)
    return Judgement.passed()


def _stdin() -> Judgement:
    return Judgement.passed() if sys.stdin.read() == "" else Judgement.failed("read the protocol")


def _descriptors() -> Judgement:
    return Judgement.partial(0.5, " ".join(sorted(entry.name for entry in Path("/proc/self/fd").iterdir())))


def _environment() -> Judgement:
    return Judgement.partial(0.5, " ".join(name for name in os.environ if "SECRET" in name))


BEHAVIOURS: Mapping[str, Callable[[], Any]] = {
    "raise": _raise,
    "spin": _spin,
    "sleep": _sleep,
    "busy": _busy,
    "slow": _slow,
    "crash": _crash,
    "exit": _exit,
    "leave": _leave,
    "memory": _memory,
    "recursion": _recursion,
    "chatter": _chatter,
    "stdin": _stdin,
    "descriptors": _descriptors,
    "environment": _environment,
    "nan": lambda: Judgement.partial(float("nan"), "not a number"),
    "negative": lambda: Judgement.partial(-1.0, "below"),
    "number": lambda: 0.0,
    "nothing": lambda: None,
    "ours": lambda: Judgement("infrastructure", None, "the simulator is down"),
    "ours late": lambda: Judgement("timeout_infra", None, "the simulator is slow"),
    "unverifiable": lambda: Judgement.unverifiable("nobody can tell"),
    "surrogate": lambda: Judgement.failed("\ud800" * 2000),
}


class Faulty(Copying):
    """Does what the answer says where the answer names a behaviour."""

    name = "faulty"

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        behaviour = BEHAVIOURS.get(attempt.final_answer)
        return behaviour() if behaviour is not None else super().verify(instance, attempt)


class Flaky(Copying):
    """The oracle passes now and then."""

    name = "flaky"

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        judgement = super().verify(instance, attempt)
        return judgement if random.random() < 0.5 else Judgement.failed("the dice say no")


class DifferentEveryTime(Copying):
    """The instance depends on the process that makes it."""

    name = "different_every_time"

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        number = str(draw.integer(0, 9999) + os.getpid() * 10_000)
        return Draft(prompt=f"Copy {number}", expected=number)


class OneSplit(Copying):
    """Overrides the split away."""

    name = "one_split"

    def instance(self, seed: int, difficulty: Mapping[str, Any] | None = None) -> Instance:
        return self._instance(seed, NoDifficulty(), self.draft(Draw(str(seed % 3)), NoDifficulty()))


class PaysForNothing(Copying):
    name = "pays_for_nothing"

    def do_nothing(self, instance: Instance) -> str:
        return str(instance.expected)


class WrongOracle(Copying):
    name = "wrong_oracle"

    def oracle(self, instance: Instance) -> str:
        return f"{instance.expected}!"


class NearMissPasses(Copying):
    name = "near_miss_passes"

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return (NearMiss(str(instance.expected), "failed", "the value itself"),)


class ExploitPasses(Copying):
    name = "exploit_passes"

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        return (
            NearMiss(instance.messages[0].content.removeprefix("Copy "), "failed", "read off the question"),
        )


class Hangs(Copying):
    """On the right answer only."""

    name = "hangs"

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        judgement = super().verify(instance, attempt)
        return _spin() if judgement.verdict == "passed" else judgement


class Incomplete(Domain[NoDifficulty]):
    """What somebody has who began to write one."""

    name = "incomplete"

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return Draft(prompt="Copy 1", expected="1")


class WantsArguments(Copying):
    def __init__(self, size: int) -> None:
        self.size = size


class WrongNames(Copying):
    name = 3  # type: ignore[assignment]
    version = "1"  # type: ignore[assignment]
    difficulty_model = int  # type: ignore[assignment]


class DraftsNothing(Copying):
    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return None  # type: ignore[return-value]


class PromptsANumber(Copying):
    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return Draft(prompt=3, expected="3")  # type: ignore[arg-type]


class AnswersANumber(Copying):
    def oracle(self, instance: Instance) -> str:
        return 3  # type: ignore[return-value]


class MissesAreText(Copying):
    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return ["3"]  # type: ignore[list-item]


class MissesWantNoVerdict(Copying):
    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        return [NearMiss("3", "wrong")]  # type: ignore[arg-type]


class DividesByZero(Copying):
    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return Draft(prompt=str(1 // 0), expected="")


class JudgesNothing(Copying):
    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        return None  # type: ignore[return-value]


class NamesAToolNobodyHas(Copying):
    name = "names_a_tool_nobody_has"

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return replace(super().draft(draw, difficulty), tools=("bas",))


class NamesNoToolOfItsOwn(Copying):
    name = "names_no_tool_of_its_own"

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return replace(super().draft(draw, difficulty), tools=("incremnt", "submit"))

    def tools(self, bench: Bench) -> Sequence[ToolFunction]:
        return (increment,)


class NamesItsOwnTool(NamesNoToolOfItsOwn):
    name = "names_its_own_tool"

    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return replace(super().draft(draw, difficulty), tools=("increment", "submit"))


class CannotMakeItsTools(NamesNoToolOfItsOwn):
    name = "cannot_make_its_tools"

    def tools(self, bench: Bench) -> Sequence[ToolFunction]:
        raise ValueError("no such seed")


async def increment(by: int = 1) -> str:
    """Adds to the counter."""
    return str(by)


class ToolsAreText(Copying):
    def draft(self, draw: Draw, difficulty: NoDifficulty) -> Draft:
        return replace(super().draft(draw, difficulty), tools=("bash"))  # type: ignore[arg-type]
