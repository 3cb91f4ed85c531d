"""`import temper` and `temper domains`: what domain authors meet first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import temper
from shared.errors import ConfigError
from temper.cli.domains import app
from tests.domains.test_registry import install

ROOT = Path(__file__).parents[2]


def test_importing_temper_loads_nothing() -> None:
    program = (
        "import sys, time; before = set(sys.modules); t = time.perf_counter(); import temper\n"
        "took = time.perf_counter() - t; new = set(sys.modules) - before\n"
        "heavy = {m for m in new if m.split('.')[0] in ('pydantic', 'numpy', 'shared', 'services', 'torch')}\n"
        "assert not heavy, heavy; print(took)"
    )
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(3)
    ]
    assert min(times) < 0.03


def test_every_name_of_the_face_is_there() -> None:
    for name in temper.__all__:
        assert getattr(temper, name) is not None, name
    assert set(temper.__all__) <= set(dir(temper))
    with pytest.raises(AttributeError, match="no attribute 'Domian'"):
        temper.Domian


def test_a_domain_is_written_with_the_face_alone() -> None:
    class Difficulty(temper.Difficulty):
        size: int = 3

    class Echo(temper.Domain[Difficulty]):
        name = "echo"
        difficulty_model = Difficulty

        def draft(self, draw: temper.Draw, difficulty: Difficulty) -> temper.Draft:
            word = "".join(draw.choice("abcdef") for _ in range(difficulty.size))
            return temper.Draft(prompt=f"Say {word}", expected=word)

        def verify(self, instance: temper.Instance, attempt: temper.Attempt) -> temper.Judgement:
            return temper.TextComparator().judge(instance.expected, attempt.final_answer)

        def oracle(self, instance: temper.Instance) -> str:
            return str(instance.expected)

        def do_nothing(self, instance: temper.Instance) -> str:
            return ""

        def near_misses(self, instance: temper.Instance) -> list[temper.NearMiss]:
            return [temper.NearMiss(f"{instance.expected}x", "failed")]

    domain = Echo()
    instance = domain.instance(4, {"size": 5})
    assert len(domain.oracle(instance)) == 5
    assert domain.verify(instance, temper.Attempt(domain.oracle(instance))).verdict == "passed"


def test_list_names_every_built_in_domain() -> None:
    result = CliRunner().invoke(app, ["list"], env={"COLUMNS": "160"})
    assert result.exit_code == 0
    for name in ("arithmetic", "extraction", "sequences"):
        assert name in result.stdout


def test_show_prints_the_question_and_its_answers() -> None:
    result = CliRunner().invoke(app, ["show", "arithmetic", "--seed", "3", "--difficulty", '{"digits": 3}'])
    assert result.exit_code == 0
    assert "What is " in result.stdout and "[oracle]" in result.stdout and "off by one" in result.stdout


def test_admit_ends_with_the_verdict_as_exit_code() -> None:
    good = CliRunner().invoke(app, ["admit", "arithmetic", "--seeds", "1", "--repeats", "1"])
    assert good.exit_code == 0 and "arithmetic version 1: admitted" in good.stdout
    bad = CliRunner().invoke(app, ["admit", "tests.verification.faulty:WrongOracle", "--seeds", "1"])
    assert bad.exit_code == 1 and "refused" in bad.stdout and "must be passed" in bad.stdout


@pytest.mark.parametrize("text", ["{", "[1]", "digits=3"])
def test_a_difficulty_that_is_no_json_object_is_refused(text: str) -> None:
    result = CliRunner().invoke(app, ["show", "arithmetic", "--difficulty", text])
    assert isinstance(result.exception, ConfigError) and "JSON object" in str(result.exception)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("Incomplete", "does not define"),
        ("DraftsNothing", "draft returned nothing"),
        ("AnswersANumber", "oracle returned"),
        ("DividesByZero", "seed 0: faulty.py:"),
    ],
)
def test_show_of_a_domain_that_does_not_work_is_one_line(place: str, words: str) -> None:
    result = CliRunner().invoke(app, ["show", f"tests.verification.faulty:{place}"])
    assert isinstance(result.exception, ConfigError) and words in str(result.exception)


def test_list_shows_the_others_beside_a_broken_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, monkeypatch, "brokenparty", "incomplete = tests.verification.faulty:Incomplete")
    result = CliRunner().invoke(app, ["list"], env={"COLUMNS": "160"})
    assert result.exit_code == 2 and "arithmetic" in result.stdout
    assert "'incomplete'" in result.stderr and "does not define" in result.stderr
