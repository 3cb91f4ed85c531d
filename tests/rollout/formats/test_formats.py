"""Formats of tool calls: any text is read without an error, and what a format writes it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.rollout.formats.calls import MOST_CALLS, Call, Format, Malformed
from services.rollout.formats.fenced import Fenced
from services.rollout.formats.hermes import Hermes
from services.rollout.formats.llama import LlamaJson
from services.rollout.tools.workspace import WorkspaceTools
from shared.contracts import ToolCall
from shared.domains.workspace_tools import WORKSPACE_TOOLS

SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Runs a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Writes a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
                "required": ["path", "content"],
            },
        },
    },
]
FORMATS: list[Format] = [Hermes(), LlamaJson(), Fenced(SCHEMAS)]
by_name = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
marks = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<|python_tag|>", "```bash\n", "```tool_call\n", "````", "\n```\n", "</think>",
     "<think>", '{"name": "bash"', '"parameters":', '"arguments": {', "}", "\\", '"', ";", "\n", "[", "NaN", "1e999",
     '"\\ud800"', "{" * 200, '{"a":' * 50]
)  # fmt: skip
hostile = st.lists(st.one_of(marks, texts), max_size=25).map("".join)
plain_json = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
calls = st.builds(Call, names, st.dictionaries(texts, plain_json, max_size=4))
bash = st.builds(lambda text: Call("bash", {"command": text}), hostile)


@by_name
@settings(max_examples=200)
@given(text=st.one_of(hostile, texts, st.text()))
@example(text="<tool_call>" + "[" * 100_000)
@example(text='{"name": "x", "parameters": ' + '{"a":' * 100_000)
@example(text="```tool_call\n" + "9" * 10_000 + "\n```")
def test_no_text_raises_and_every_call_can_travel(form: Format, text: str) -> None:
    parsed = form.parse(text)
    for call in parsed.calls:
        if isinstance(call, Malformed):
            assert len(call.reason) > 20
        else:
            record = ToolCall(name=call.name, arguments=call.arguments)
            assert ToolCall.model_validate_json(record.model_dump_json()) == record


@by_name
@settings(max_examples=100)
@given(wanted=st.lists(st.one_of(calls, bash), min_size=1, max_size=4))
def test_a_format_reads_what_it_writes(form: Format, wanted: list[Call]) -> None:
    parsed = form.parse(form.render(wanted))
    assert list(parsed.calls) == wanted
    assert parsed.malformed == 0


@by_name
@given(said=st.text(st.sampled_from("ab \n.{}")), wanted=st.lists(calls, min_size=1, max_size=3))
def test_what_was_said_before_calls_is_kept_apart(form: Format, said: str, wanted: list[Call]) -> None:
    parsed = form.parse(form.render(wanted, said))
    assert (parsed.said, list(parsed.calls)) == (said.strip(), wanted)


@pytest.mark.parametrize("form", [Hermes(), Fenced(SCHEMAS)], ids=lambda form: form.name)
def test_what_is_said_after_a_call_is_no_call(form: Format) -> None:
    call = Call("bash", {"command": "ls"})
    assert form.parse(f"{form.render([call])}\nand more").calls == (call,)


@by_name
def test_an_answer_is_no_call(form: Format) -> None:
    for text in ("42", "", '{"name": "Bob", "age": 3}', "```json\n{}\n```", "use <tool>", "[1, 2]"):
        assert form.parse(text).calls == ()


@by_name
def test_a_call_that_was_only_thought_of_is_none(form: Format) -> None:
    written = form.render([Call("bash", {"command": "rm x"})])
    assert form.parse(f"<think>{written}</think>no").calls == ()
    assert form.parse(f"<think>hm</think>\n{written}").calls == (Call("bash", {"command": "rm x"}),)


@by_name
def test_a_flood_of_calls_is_cut(form: Format) -> None:
    parsed = form.parse(form.render([Call("bash", {"command": "x"})] * 5000))
    assert len(parsed.calls) == MOST_CALLS + 1
    assert isinstance(parsed.calls[-1], Malformed)


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        (Hermes(), '<tool_call>{"name": "bash", "arguments": {"command": "ls}}</tool_call>', "it is not JSON: Unterminated"),
        (Hermes(), '<tool_call>{"name": "bash", "arguments": {}}', "is not closed"),
        (Hermes(), '<tool_call>{"name": "bash"} {"x": 1}</tool_call>', "more after its JSON object"),
        (Hermes(), "<tool_call>bash ls</tool_call>", "it is not JSON"),
        (Hermes(), '<tool_call>{"arguments": {}}</tool_call>', 'has no "name"'),
        (Hermes(), '<tool_call>{"name": "bash", "arguments": [1]}</tool_call>', "not a list"),
        (Hermes(), '<tool_call>{"name": "bash", "arguments": {"x": NaN}}</tool_call>', "NaN is no JSON number"),
        (Hermes(), '<tool_call>{"name": "bash", "arguments": {"x": "\\ud800"}}</tool_call>', "half of a character"),
        (Hermes(), "<tool_call>" + "[" * 70 + "]" * 70 + "</tool_call>", "nested deeper than 64"),
        (Hermes(), "<tool_call>" + "9" * 5000 + "</tool_call>", "too many digits"),
        (LlamaJson(), '{"name": "bash", "parameters": {"command": "ls"}', "it is not JSON"),
        (LlamaJson(), "<|python_tag|>print(1)", "it is not JSON"),
        (Fenced(SCHEMAS), "```bash\nls", "is not closed"),
        (Fenced(SCHEMAS), "```tool_call\nls\n```", "it is not JSON"),
        (Fenced(SCHEMAS), '```tool_call\n{"name": "x"}{}\n```', "more than one JSON object"),
    ],
)  # fmt: skip
def test_a_malformed_call_says_what_is_wrong_and_how_to_write_it(form: Format, text: str, said: str) -> None:
    (call,) = form.parse(text).calls
    assert isinstance(call, Malformed)
    assert said in call.reason


def test_the_call_after_a_malformed_one_is_read() -> None:
    good = Call("bash", {"command": "ls"})
    text = f"<tool_call>oops</tool_call>\n{Hermes().render([good])}"
    first, second = Hermes().parse(text).calls
    assert isinstance(first, Malformed)
    assert second == good


def test_arguments_that_hold_the_closing_tag_are_read_whole() -> None:
    call = Call("write_file", {"path": "a", "content": "x</tool_call>\n<tool_call>y"})
    assert Hermes().parse(Hermes().render([call])).calls == (call,)


def test_ways_of_writing_that_models_have_are_read() -> None:
    """Arguments as a JSON text (OpenAI's interface), `parameters` for `arguments`, and the schema's own nesting."""
    wanted = (Call("bash", {"command": "ls"}),)
    arguments = json.dumps(json.dumps({"command": "ls"}))
    assert (
        Hermes().parse(f'<tool_call>{{"name": "bash", "arguments": {arguments}}}</tool_call>').calls == wanted
    )
    assert (
        Hermes().parse('<tool_call>{"name":"bash","parameters":{"command":"ls"}}</tool_call>').calls == wanted
    )
    nested = '{"type": "function", "function": {"name": "bash", "parameters": {"command": "ls"}}}'
    assert LlamaJson().parse(nested).calls == wanted
    assert LlamaJson().parse(f"<|python_tag|>{nested}").calls == wanted


def test_llama_reads_several_calls() -> None:
    """Meta's own example separates them with a semicolon."""
    text = '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": 1}}'
    assert LlamaJson().parse(text).calls == (Call("a", {}), Call("b", {"x": 1}))


def test_a_block_with_a_tools_name_is_its_text_argument() -> None:
    form = Fenced(SCHEMAS)
    assert form.parse("First:\n```bash\nls -l\ncat x\n```\n").calls == (
        Call("bash", {"command": "ls -l\ncat x"}),
    )
    # A tool with two arguments has no such form: its block is text like any other.
    assert form.parse("```write_file\nx\n```").calls == ()
    assert form.parse("````bash\n```\nx\n```\n````").calls == (Call("bash", {"command": "```\nx\n```"}),)


def test_a_block_inside_another_is_no_call() -> None:
    assert Fenced(SCHEMAS).parse("````markdown\n```bash\nrm -rf /\n```\n````\n").calls == ()


@by_name
def test_instructions_name_every_tool_and_show_the_form(form: Format) -> None:
    told = form.instructions(SCHEMAS)
    assert "bash" in told
    assert "write_file" in told


def test_the_fenced_form_of_the_sandboxs_own_tools() -> None:
    """All but `write_file` need one text."""
    from shared.sandbox.sessions.session import Session

    session: Any = object.__new__(Session)
    tools = [WorkspaceTools(session).make(name) for name in WORKSPACE_TOOLS]
    form = Fenced([tool.signature.schema() for tool in tools])
    found = {name for name in WORKSPACE_TOOLS if form.parse(f"```{name}\nx\n```").calls}
    assert found == {"bash", "python", "read_file", "search_files", "submit"}
