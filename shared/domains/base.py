"""What a domain is: a deterministic generator, a verifier, and the answers that put it on trial.

Invariant: an instance is a function of (domain, version, seed, difficulty) alone, and no instance is in both
splits: a draw whose content belongs to the other split is drawn again, so even a space of a few hundred sums
shares nothing between training and evaluation.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import TypeVar

from shared.contracts.reward import Verdict
from shared.contracts.task import ChatMessage, DomainRef
from shared.domains.agent import AgentProgram
from shared.domains.draw import Draw
from shared.domains.played import Answer, Played
from shared.errors import ConfigError, VerificationFault
from shared.plain_errors import explain
from shared.verification.judgement import Attempt, Judgement
from shared.verification.request import CheckRequest

__all__ = [
    "HELD_OUT_SEED", "Answer", "Attempt", "CheckRequest", "Difficulty", "Domain", "Draft", "Instance", "Judgement",
    "NearMiss", "Played", "SandboxedDomain", "is_held_out",
]  # fmt: skip

HELD_OUT_SEED = 1 << 40
"""Seeds from here on are held out; below, they train."""
_HELD_OUT_SHARE = 5
"""One content in five belongs to the held-out split."""
_MOST_DRAWS = 1000


def is_held_out(seed: int) -> bool:
    return seed >= HELD_OUT_SEED


class Difficulty(BaseModel):
    """Base of a domain's difficulty: immutable, and a key that is not read is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


D = TypeVar("D", bound=Difficulty, default=Any)
"""`Domain` alone is a domain of any difficulty."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a generator makes of one draw.

    `expected` stays with the verifier. `identity` is what makes two drafts the same question (17 + 25 and
    25 + 17); empty, the public text itself is.
    """

    prompt: str | tuple[ChatMessage, ...]
    expected: Any
    identity: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """One question. `expected` is private to `verify`: it is in no digest, task, log or repr."""

    domain: str
    version: int
    seed: int
    difficulty: Mapping[str, Any]
    messages: tuple[ChatMessage, ...]
    identity: str
    expected: Any = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    cell: str = ""

    def public(self) -> dict[str, Any]:
        """All that the policy may see, and where it comes from, as JSON data."""
        return {
            "domain": self.domain,
            "version": self.version,
            "seed": self.seed,
            "difficulty": dict(self.difficulty),
            "messages": [{"role": m.role, "content": m.content} for m in self.messages],
            "files": dict(self.files),
            "tools": list(self.tools),
        }

    def question(self) -> str:
        """What the policy sees, as text: equal exactly where prompt and files are."""
        return _content_of(self.messages, self.files)

    def digest(self) -> str:
        """sha256 (hex) of the public part as canonical JSON: sorted keys, ASCII, no spaces."""
        text = json.dumps(self.public(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def reference(self) -> DomainRef:
        """What travels in a task: the verifier makes the instance again from it."""
        return DomainRef(
            name=self.domain,
            version=self.version,
            seed=self.seed,
            difficulty=dict(self.difficulty),
            instance_digest=self.digest(),
            cell=self.cell,
        )


@dataclass(frozen=True, slots=True)
class NearMiss:
    """An answer close to the right one (text, or work), and the verdict that it must get."""

    answer: Answer
    verdict: Verdict
    why: str = ""


class TooFewQuestionsError(ConfigError):
    """A split holds no instance at a difficulty, or so few that none was met."""


class ShapeError(ConfigError):
    """A method of a domain returned something of another type than it must: the same at every seed."""


@dataclass(frozen=True, slots=True)
class TrialAnswers:
    """What a domain says of one instance for its own trial; every answer is text or work."""

    oracle: Answer
    do_nothing: Answer
    near_misses: tuple[NearMiss, ...]
    exploits: tuple[NearMiss, ...]


class Domain(ABC, Generic[D]):
    """One domain: subclass, set the four names, and write the six methods below them.

    `instance` is not meant to be overridden: it keeps the split and the digests.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raise it with every change that alters an instance or a verdict; an old reference is then refused."""
    cell: ClassVar[str] = "text/no tools/one round/exact"
    """Its cell of the domain matrix: input modality / tools / rounds / verification method."""
    difficulty_model: type[D]
    agent: ClassVar[AgentProgram | None] = None
    """A program that works on the instance by itself and asks the policy over HTTP, in the place of our own turns."""

    @abstractmethod
    def draft(self, draw: Draw, difficulty: D) -> Draft:
        """One question from the stream `draw`, and from nothing else: no clock, no global random state."""

    @abstractmethod
    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        """The verdict on an attempt. What it raises is a fault of ours: retried, never a reward."""

    def check(self, instance: Instance, attempt: Attempt) -> Judgement | CheckRequest:
        """What the verifier asks for: the verdict, or the check that will find it in a sandbox (`CheckRequest`).

        Override it where untrusted code has to run; it is called in the same killable child as `verify`, which
        never runs such code itself.
        """
        return self.verify(instance, attempt)

    @abstractmethod
    def oracle(self, instance: Instance) -> Answer:
        """An answer that must pass; also the demonstration of the `sft` stage. `Played` is work: shell commands."""

    @abstractmethod
    def do_nothing(self, instance: Instance) -> Answer:
        """What a policy that does nothing would answer; must fail."""

    @abstractmethod
    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        """Answers next to the right one, with the verdict each must get."""

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        """Known ways to be paid without an answer. None of them may pass."""
        return ()

    def parse_difficulty(self, difficulty: Mapping[str, Any]) -> D:
        """Raises `ConfigError` naming the key, the value and the nearest known key."""
        try:
            return self.difficulty_model.model_validate(dict(difficulty))
        except ValidationError as error:
            problems = explain(self.difficulty_model, error, "the difficulty")
            raise ConfigError(f"difficulty of domain {self.name!r}: {problems}") from error

    def instance(self, seed: int, difficulty: Mapping[str, Any] | None = None) -> Instance:
        """The instance of this seed: the same everywhere, in the split that the seed says.

        Raises `ConfigError` for an unusable difficulty, `TooFewQuestionsError` where the split holds no such instance,
        and `ShapeError` for a `draft` that returns another type.
        """
        if seed < 0:
            raise ConfigError(f"seed of domain {self.name!r} is {seed}: it must not be negative")
        parsed = self.parse_difficulty(difficulty or {})
        for number in range(_MOST_DRAWS):
            draft = self.draft(Draw(f"{self.name}/{self.version}/{seed}/{number}"), parsed)
            _check_draft(self.name, draft)
            instance = self._instance(seed, parsed, draft)
            if _content_is_held_out(self.name, instance.identity) == is_held_out(seed):
                return instance
        split = "held-out" if is_held_out(seed) else "training"
        raise TooFewQuestionsError(
            f"domain {self.name!r} found no {split} instance in {_MOST_DRAWS} draws at difficulty "
            f"{parsed.model_dump(mode='json')}: it makes too few different questions; widen the difficulty"
        )

    def _instance(self, seed: int, difficulty: D, draft: Draft) -> Instance:
        prompt = draft.prompt
        messages = (ChatMessage(role="user", content=prompt),) if isinstance(prompt, str) else prompt
        return Instance(
            domain=self.name,
            version=self.version,
            seed=seed,
            difficulty=difficulty.model_dump(mode="json"),
            messages=messages,
            identity=draft.identity or _content_of(messages, draft.files),
            expected=draft.expected,
            files=draft.files,
            tools=draft.tools,
            cell=self.cell,
        )


def trial_answers(domain: Domain, instance: Instance) -> TrialAnswers:
    """The answers that put `domain` on trial. Raises `ShapeError` where a method returns another type."""
    name = domain.name
    return TrialAnswers(
        _answer(name, "oracle", domain.oracle(instance)),
        _answer(name, "do_nothing", domain.do_nothing(instance)),
        _misses(name, "near_misses", domain.near_misses(instance)),
        _misses(name, "exploits", domain.exploits(instance)),
    )


def _answer(name: str, method: str, found: object) -> Answer:
    if not isinstance(found, str | Played):
        raise ShapeError(
            f"domain {name!r}: {method} returned {_kind(found)}: it must return text (str), or Played for work"
        )
    return found


def _misses(name: str, method: str, found: object) -> tuple[NearMiss, ...]:
    wanted = f"domain {name!r}: {method} returned {{}}: it must return a list of NearMiss"
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ShapeError(wanted.format(_kind(found)))
    for item in found:
        if not isinstance(item, NearMiss):
            raise ShapeError(wanted.format(f"{_kind(item)} in its list"))
        _answer(name, f"an answer of {method}", item.answer)
        if item.verdict not in get_args(Verdict):
            raise ShapeError(
                f"domain {name!r}: {method} wants verdict {item.verdict!r}: use one of {', '.join(get_args(Verdict))}"
            )
    return tuple(found)


def _check_draft(name: str, draft: object) -> None:
    if not isinstance(draft, Draft):
        raise ShapeError(f"domain {name!r}: draft returned {_kind(draft)}: it must return a Draft")
    prompt = draft.prompt
    messages = isinstance(prompt, tuple) and prompt and all(isinstance(m, ChatMessage) for m in prompt)
    if not (messages or isinstance(prompt, str)):
        raise ShapeError(
            f"domain {name!r}: the prompt of a draft is {_kind(prompt)}: it must be text (str) or a tuple of ChatMessage"
        )
    if not isinstance(draft.tools, tuple | list) or not all(isinstance(tool, str) for tool in draft.tools):
        raise ShapeError(
            f"domain {name!r}: the tools of a draft are {_kind(draft.tools)}: they must be a tuple of names, "
            "tools=('bash',)"
        )
    if not isinstance(draft.identity, str):
        raise ShapeError(
            f"domain {name!r}: the identity of a draft is {_kind(draft.identity)}: it must be text (str)"
        )


def _kind(found: object) -> str:
    return "nothing (None)" if found is None else f"a value of type {type(found).__name__}"


class SandboxedDomain(Domain[D]):
    """A domain whose verdicts are found in a sandbox: write `check` in the place of `verify`."""

    @abstractmethod
    def check(self, instance: Instance, attempt: Attempt) -> Judgement | CheckRequest:
        """As in `Domain`; what can be told without running anything (no answer at all) is a judgement at once."""

    def verify(self, instance: Instance, attempt: Attempt) -> Judgement:
        """Raises `VerificationFault` where the check needs a sandbox."""
        found = self.check(instance, attempt)
        if isinstance(found, Judgement):
            return found
        raise VerificationFault(
            f"domain {self.name!r} wants a {found.method} check: ask `check` and run it in a sandbox"
        )


def _content_of(messages: tuple[ChatMessage, ...], files: Mapping[str, str]) -> str:
    return json.dumps([[m.role, m.content] for m in messages] + [sorted(files.items())])


def _content_is_held_out(domain: str, identity: str) -> bool:
    """Which split a content belongs to: neither the seed nor the difficulty nor the version has a say."""
    digest = hashlib.sha256(f"split/{domain}/{identity}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % _HELD_OUT_SHARE == 0
