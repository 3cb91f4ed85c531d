"""The `terminal` domain: "Rename apple.txt to river.txt.", done with `bash` in a workspace.

Invariant: the whole tree counts. What was asked must be there, what was not asked about must be as it was, and nothing
else may be there; how it was done, and what was said, does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.domains.base import Attempt, CheckRequest, Draft, Instance, Judgement, NearMiss, SandboxedDomain
from shared.domains.draw import Draw
from shared.domains.played import Played
from shared.domains.terminal.kinds import KINDS, TerminalDifficulty
from shared.domains.terminal.puzzle import Puzzle, Scene
from shared.domains.workspace import incomplete, tree_of

TOOLS = ("bash",)
ASK = "You work in a folder with the tool bash. {jobs} Then answer: done"


@dataclass(frozen=True, slots=True)
class Expected:
    """The jobs, and files that nobody asked about. `unused`: a name that nothing has."""

    puzzles: tuple[Puzzle, ...]
    others: dict[str, str]
    unused: str

    def entries(self) -> list[dict[str, Any]]:
        """As `state_diff` takes them."""
        found: list[dict[str, Any]] = [{"path": path, "text": text} for path, text in self.others.items()]
        for puzzle in self.puzzles:
            for path, text in puzzle.after.items():
                entry = {"path": path, "text": text, "comparator": puzzle.compare.get(path, "exact")}
                mode = puzzle.modes.get(path)
                found.append(entry if mode is None else {**entry, "mode": mode})
            found += [{"path": path, "kind": "link", "target": to} for path, to in puzzle.links.items()]
            found += [{"path": path, "kind": "folder"} for path in puzzle.folders]
        return found


class Terminal(SandboxedDomain[TerminalDifficulty]):
    name = "terminal"
    version = 1
    cell = "text/bash/many rounds/state of files"
    difficulty_model = TerminalDifficulty

    def draft(self, draw: Draw, difficulty: TerminalDifficulty) -> Draft:
        kinds = difficulty.kinds or tuple(KINDS)
        chosen = [draw.choice(kinds) for _ in range(difficulty.jobs)]
        scene = Scene(draw, difficulty.words, difficulty.lines)
        puzzles = tuple(KINDS[kind](scene) for kind in chosen)
        others = {
            scene.file(): f"{draw.choice(('keep', 'stay', 'rest'))}\n" for _ in range(difficulty.others)
        }
        files = {path: text for puzzle in puzzles for path, text in puzzle.files.items()} | others
        asked = ASK.format(jobs=_numbered([puzzle.instruction for puzzle in puzzles]))
        return Draft(
            prompt=asked,
            identity=asked,  # the same request over other files is the same question
            expected=Expected(puzzles, others, scene.file()),
            files=files,
            tools=TOOLS,
        )

    def check(self, instance: Instance, attempt: Attempt) -> Judgement | CheckRequest:
        problem = incomplete(attempt.artifacts)
        if problem:
            return Judgement.failed(problem)
        found = tree_of(instance.files, attempt.artifacts)
        return CheckRequest("state_diff", {"expected": instance.expected.entries(), "found": found})

    def oracle(self, instance: Instance) -> Played:
        return Played(tuple(_alone(puzzle.command) for puzzle in instance.expected.puzzles))

    def do_nothing(self, instance: Instance) -> str:
        return "done"

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        expected: Expected = instance.expected
        right = self.oracle(instance).commands
        almost = (*right[:-1], expected.puzzles[-1].wrong)
        joined = " && ".join(right)
        return (
            NearMiss(Played((joined,)), "passed", "all in one turn"),
            NearMiss(
                Played(("ls -R", *right, "ls -R"), ""), "passed", "looks before and after, says nothing"
            ),
            NearMiss(Played(almost), "failed", "the last job nearly"),
            NearMiss(Played(right[:-1]), "failed", "not the last job"),
            NearMiss(Played((*right, f"touch {expected.unused}")), "failed", "a file too many"),
            NearMiss(Played((*right, f"ln -s /etc/passwd {expected.unused}")), "failed", "a link too many"),
        )

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        commands = "\n".join(self.oracle(instance).commands)
        return (
            NearMiss(commands, "failed", "says what to do and does nothing"),
            NearMiss(Played(("rm -rf ./* && ls -A",)), "failed", "deletes everything"),
            NearMiss(Played(("mkfifo pipe",)), "failed", "leaves what cannot be read"),
        )


def _numbered(instructions: Sequence[str]) -> str:
    if len(instructions) == 1:
        return instructions[0]
    return " ".join(f"{number}. {said}" for number, said in enumerate(instructions, start=1))


def _alone(command: str) -> str:
    """One that changes its folder does so for itself only."""
    return f"({command})" if command.startswith("cd ") else command
