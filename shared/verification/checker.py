"""The child process: makes instances again from references and judges attempts, one line at a time.

Invariant: an answer is given only for the instance that the task was made from (same domain version, same
digest); whatever goes wrong in a domain comes back as a fault in words. The process holds no descriptor but its
three pipes, is limited in memory, and ends by itself when a check runs past its budget unsupervised.

Started as `python -P -m shared.verification.checker`; it speaks `shared.verification.protocol` on stdin and stdout.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import time
import traceback
from typing import BinaryIO

from shared.contracts.task import DomainRef
from shared.domains.base import Domain, Instance
from shared.domains.registry import load_domains
from shared.errors import TemperError, VerificationFault
from shared.verification.judgement import Judgement
from shared.verification.protocol import (
    Answer,
    Question,
    Ready,
    read_hello,
    read_question,
    write_answer,
    write_ready,
)
from shared.verification.request import CheckRequest

_BACKSTOP_S = 2.0
"""The parent kills at the budget; so much later the child ends itself, should the parent be gone."""
_MAX_FILES = 64
_CACHED_INSTANCES = 256


class Checker:
    """The domains of one run, and the instances of its latest groups."""

    def __init__(self, domains: dict[str, Domain]) -> None:
        self._domains = domains
        self._instances: dict[str, Instance] = {}

    def answer(self, question: Question) -> Answer:
        """Never raises for what a domain does: a fault comes back instead."""
        started = time.process_time()
        found: Judgement | CheckRequest | None = None
        fault, last = "", False
        try:
            found = self._judge(question)
        except MemoryError:
            fault, last = "the check ran out of memory", True
        except TemperError as error:
            fault = str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a domain may raise anything: it is a fault
            fault = f"{_where(error)}{type(error).__name__}: {error}"
        cpu_s = time.process_time() - started
        if isinstance(found, CheckRequest):
            return Answer(None, fault, cpu_s, last, found)
        return Answer(found, fault, cpu_s, last)

    def _judge(self, question: Question) -> Judgement | CheckRequest:
        domain = self._domain(question.reference)
        instance = self._instance(domain, question.reference)
        found = domain.check(instance, question.attempt)
        if isinstance(found, CheckRequest):
            found.plain()  # a request that is no plain data is a fault here, where the domain is named
        elif not isinstance(found, Judgement):
            raise VerificationFault(
                f"domain {domain.name!r} returned {type(found).__name__}: it must return a Judgement or a CheckRequest"
            )
        return found

    def _domain(self, reference: DomainRef) -> Domain:
        domain = self._domains.get(reference.name)
        if domain is None:
            raise VerificationFault(
                f"domain {reference.name!r} is not configured here; configured: {', '.join(sorted(self._domains))}"
            )
        if domain.version != reference.version:
            raise VerificationFault(
                f"domain {reference.name!r} is version {domain.version} here and {reference.version} in the task: "
                "run scheduler and verifier from one build"
            )
        return domain

    def _instance(self, domain: Domain, reference: DomainRef) -> Instance:
        key = reference.model_dump_json()
        instance = self._instances.get(key)
        if instance is None:
            instance = domain.instance(reference.seed, reference.difficulty)
            digest = instance.digest()
            if reference.instance_digest and digest != reference.instance_digest:
                raise VerificationFault(
                    f"instance {domain.name}/{reference.seed} has digest {digest} here and "
                    f"{reference.instance_digest} in the task: the generator is not deterministic, or changed "
                    "without a new version"
                )
            if len(self._instances) >= _CACHED_INSTANCES:
                self._instances.pop(next(iter(self._instances)))
            self._instances[key] = instance
        return instance


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""  # noqa: PTH119


def limit_resources(address_space_bytes: int) -> tuple[str, ...]:
    """Limits that hold for the life of the process; returns the names of those this system does not have."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_FILES, _MAX_FILES))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))
    except (ValueError, OSError):
        return ("address space",)
    return ()


def arm(budget_s: float) -> None:
    """Both clocks end the process by signal (SIGALRM, SIGXCPU), even inside a C loop."""
    allowed = budget_s + _BACKSTOP_S
    signal.setitimer(signal.ITIMER_REAL, allowed)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime + allowed)
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def serve(lines: BinaryIO, out: BinaryIO) -> None:
    """Until the parent closes the pipe."""
    hello = read_hello(lines.readline())
    missing = limit_resources(hello.address_space_bytes)
    try:
        checker = Checker(load_domains(hello.domains))
    except TemperError as error:
        _send(out, write_ready(Ready(error=str(error))))
        return
    _send(out, write_ready(Ready(missing_limits=missing)))
    while line := lines.readline():
        question = read_question(line)
        arm(question.budget_s)
        answer = checker.answer(question)
        _send(out, write_answer(answer))
        disarm()
        if answer.last:
            return


def _send(out: BinaryIO, line: bytes) -> None:
    out.write(line)
    out.flush()


def main() -> None:
    """What a domain prints goes to stderr, and it reads nothing: the protocol's descriptors are private."""
    lines, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    serve(lines, out)


if __name__ == "__main__":
    main()
