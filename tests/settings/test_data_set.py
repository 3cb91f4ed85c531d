"""JSONL files of demonstrations and pairs: what is read, in which order, and how a bad line is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.data_set import check_data, data_digest, load_data
from shared.errors import ConfigError, ContractError
from shared.settings import StageSettings, parse_settings


def stage(folder: Path, kind: str, *lines: Any) -> StageSettings:
    path = folder / "lines.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return StageSettings(kind=kind, steps=1, data=str(path))  # type: ignore[arg-type]


def messages(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def pair(prompt: Any, chosen: Any = "yes", rejected: Any = "no") -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_the_last_message_is_imitated_and_the_rest_is_the_prompt(tmp_path: Path) -> None:
    turns = (("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    data = load_data(
        stage(tmp_path, "sft", messages(*turns), "", messages(("user", "x"), ("assistant", "y")))
    )
    assert len(data) == 2 and data.name == "lines.jsonl"
    first = data.line(0)
    assert [message.content for message in first.prompt] == ["s", "a", "b", "c"]
    assert [message.content for message in first.answer] == ["d"] and first.rejected == ()


def test_a_pair_may_be_written_in_three_ways(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "q"}]
    answer = [{"role": "assistant", "content": "yes"}]
    other = {"messages": turn, "chosen": answer, "rejected": "no"}
    data = load_data(stage(tmp_path, "preference", pair("q"), pair(turn, answer), other))
    assert data.line(0) == data.line(1) == data.line(2)
    assert (data.line(0).answer[0].content, data.line(0).rejected[0].content) == ("yes", "no")


def test_every_line_comes_once_an_epoch_in_an_order_of_its_own(tmp_path: Path) -> None:
    given = stage(tmp_path, "preference", *(pair(str(number)) for number in range(20)))
    data = load_data(given, run_seed=3, stage_index=1)
    epochs = [[data.number_at(20 * epoch + at) for at in range(20)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = load_data(given, run_seed=3, stage_index=1)
    assert [again.number_at(47), again.number_at(5)] == [epochs[2][7], epochs[0][5]]
    assert [load_data(given, run_seed=4).number_at(at) for at in range(20)] != epochs[0]
    assert data.digest == data_digest(given.data)


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        ("sft", "{", "line 2: no valid JSON"),
        ("sft", "[1]", "line 2: no JSON object"),
        ("sft", {"text": "a"}, "line 2: `messages` must be a list of messages; the line has 'text'"),
        ("sft", messages(("user", "a")), "last message is the assistant's"),
        ("sft", messages(("user", "a"), ("robot", "b")), "message without role"),
        (
            "preference",
            {"prompt": "q", "chosen": "a"},
            "line 2: `rejected` must be a list of messages or a text; the line has 'prompt', 'chosen'",
        ),
        ("preference", pair("q", "same", "same"), "`chosen` and `rejected` are the same"),
        ("preference", pair([{"role": "assistant", "content": "a"}]), "must end with a message that is not"),
        (
            "preference",
            pair("q", [{"role": "user", "content": "a"}]),
            "`chosen` must be a text or one assistant",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, kind: str, line: Any, message: str) -> None:
    good = messages(("user", "a"), ("assistant", "b")) if kind == "sft" else pair("q")
    with pytest.raises(ContractError, match=message) as caught:
        load_data(stage(tmp_path, kind, good, line, good))
    assert "lines.jsonl" in str(caught.value) and caught.value.exit_code == 4


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="holds no line"):
        load_data(stage(tmp_path, "sft", ""))
    missing = {"kind": "sft", "steps": 1, "data": str(tmp_path / "none.jsonl")}
    document = {"run": {"name": "r"}, "model": {"path": "m"}, "domains": [{"name": "a"}], "stages": [missing]}
    with pytest.raises(ConfigError, match="none.jsonl' cannot be read: No such file"):
        check_data(parse_settings(document))
