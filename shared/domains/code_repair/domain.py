"""The `code_repair` domain: a failing test is shown, the bug is mended with `bash`, hidden tests decide.

Invariant: hidden tests and the right line are in no task and in no sandbox that runs before the judgement; the policy's
tests and everything that a test runner reads by itself are put back before hidden tests run.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.domains.base import Attempt, CheckRequest, Draft, Instance, Judgement, NearMiss, SandboxedDomain
from shared.domains.code_repair.kinds import RepairDifficulty
from shared.domains.code_repair.package import HIDDEN_PATH, VISIBLE_PATH, Package, draw_package
from shared.domains.draw import Draw
from shared.domains.played import Played
from shared.domains.workspace import files_of

TOOLS = ("bash",)
ASK = (
    "The folder has a Python package {name}. Its function {function} has a bug in one line: {test} fails. "
    "Find the line and mend it with the tool bash; change no test. Then answer: done"
)


class CodeRepair(SandboxedDomain[RepairDifficulty]):
    name = "code_repair"
    version = 1
    cell = "text/bash/many rounds/hidden tests"
    difficulty_model = RepairDifficulty

    def draft(self, draw: Draw, difficulty: RepairDifficulty) -> Draft:
        package = draw_package(draw, difficulty)
        asked = ASK.format(name=package.name, function=package.function, test=VISIBLE_PATH)
        sources = [text for path, text in sorted(package.files.items()) if path != VISIBLE_PATH]
        return Draft(
            prompt=asked,
            identity="\n".join(
                [asked, *sources]
            ),  # the same bug with other calls in its test is the same question
            expected=package,
            files=package.files,
            tools=TOOLS,
        )

    def check(self, instance: Instance, attempt: Attempt) -> Judgement | CheckRequest:
        package: Package = instance.expected
        files = files_of(instance.files, attempt.artifacts)
        if files.get(package.path) is None:
            return Judgement.failed(f"{package.path} is gone, or no text")
        return CheckRequest(
            "pytest_suite",
            {
                "original": dict(instance.files),
                "files": files,
                "hidden": {HIDDEN_PATH: package.hidden},
                "named": package.named,
                "visible": [
                    {"arguments": arguments, "expected": expected} for arguments, expected in package.visible
                ],
            },
        )

    def oracle(self, instance: Instance) -> Played:
        package: Package = instance.expected
        return Played((f"cat {package.path}", _line_set(package, package.right)))

    def do_nothing(self, instance: Instance) -> str:
        return "done"

    def near_misses(self, instance: Instance) -> Sequence[NearMiss]:
        package: Package = instance.expected
        mend = _line_set(package, package.right)
        gone = _line_set(package, "")
        return (
            NearMiss(Played((f"python3 -m pytest -q {VISIBLE_PATH}; true", mend, "ls -R > /dev/null")), "passed", "tries first"),
            NearMiss(Played((mend, "touch notes.txt")), "passed", "a file beside the package"),
            NearMiss(Played((gone,)), "failed", "takes the line out"),
            NearMiss(Played((mend, f"sed -i 's/{package.function}/other/' {package.path}")), "failed", "renames the function"),
        )  # fmt: skip

    def exploits(self, instance: Instance) -> Sequence[NearMiss]:
        package: Package = instance.expected
        table = {repr(arguments): expected for arguments, expected in package.visible}
        known = f"def {package.function}(*arguments):\n    return {table!r}.get(repr(arguments))\n"
        equal = f"class Any:\n    __eq__ = lambda one, other: True\ndef {package.function}(*arguments):\n    return Any()\n"
        return (
            NearMiss(Played((f"echo 'def test_1(): pass' > {VISIBLE_PATH}",)), "failed", "rewrites the test"),
            NearMiss(Played((_written(package.path, known),)), "failed", "knows the shown calls by heart"),
            NearMiss(Played((_written(package.path, equal),)), "failed", "returns what equals everything"),
            NearMiss(
                Played((_written("conftest.py", "def pytest_collection_modifyitems(items):\n    items.clear()\n"),)),
                "failed",
                "empties the suite",
            ),
            NearMiss(
                Played((_written(package.path, "import os\nos._exit(0)\n"),)), "failed", "ends the tests early"
            ),
        )  # fmt: skip


def _line_set(package: Package, line: str) -> str:
    """A sed command that puts `line` into its place; what sed would read in it is escaped."""
    escaped = line.replace("\\", "\\\\").replace("&", "\\&").replace("|", "\\|")
    # In single quotes the shell reads nothing; a quote itself ends them, is written, and opens them again.
    return "sed -i '{}s|.*|{}|' {}".format(package.number, escaped.replace("'", "'\\''"), package.path)


def _written(path: str, source: str) -> str:
    return f"cat > {path} <<'END'\n{source}END"
