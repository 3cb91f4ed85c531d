"""Domains for the auditor to find something in. Tests only: reached by place."""

from __future__ import annotations

import itertools
import os
import random

from shared.domains.base import Attempt, Instance, Judgement
from tests.verification.faulty import Copying

FLAGGING = "tests.services.audited:Flagging"
MOODY = "tests.services.audited:Moody"
SHAKY = "tests.services.audited:Shaky"
EVEN = "tests.services.audited:EvenLength"
BY_PROCESS = "tests.services.audited:ByProcess"


class Flagging(Copying):
    """Flags an answer that says `cheat`, and pays it nothing."""

    name = "flagging"

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        judgement = super().verify(instance, attempt)
        return judgement.flagged(["reward_path_written"]) if "cheat" in attempt.final_answer else judgement


class Moody(Copying):
    """Every other check of one process passes."""

    name = "moody"
    _turns = itertools.count()

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        return Judgement.passed() if next(self._turns) % 2 else Judgement.failed("not in the mood")


class Shaky(Copying):
    """Throws a coin instead of looking, in a fifth of its checks."""

    name = "shaky"
    _chance = random.SystemRandom()

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        if self._chance.random() < 0.2:
            return Judgement.passed() if self._chance.random() < 0.5 else Judgement.failed("a coin")
        return super().verify(instance, attempt)


class EvenLength(Copying):
    """Pays any answer of an even number of characters: a policy that has learnt nothing gets it right at times."""

    name = "even_length"

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        return Judgement.failed("odd") if len(attempt.final_answer) % 2 else Judgement.passed()


class ByProcess(Copying):
    """One verdict a process: only a check in another one sees that."""

    name = "by_process"

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        return Judgement.partial((os.getpid() % 997) / 997, "a number of this process")
