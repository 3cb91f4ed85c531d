"""What every engine keeps, whatever library samples the tokens: one suite, run on each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.rollout.engines.base import (
    NOTHING,
    Engine,
    Generation,
    GenerationFault,
    RequestTooLongError,
)
from services.rollout.engines.cut import Cut, unless_cut
from shared.errors import AttestationError
from tests.rollout.engines.little_model import VOCABULARY, scaled
from tests.rollout.engines.subjects import (
    STOP,
    Subject,
    canary_of,
    long_request,
    request,
    sampled,
    scores,
)

CLOSE = 2e-3
"""Of log-probabilities in float32, over kernels of different engines."""


@pytest.fixture
def fresh(subject: Subject) -> Iterator[Engine]:
    engine = subject.fresh()
    yield engine
    subject.run(asyncio.to_thread(engine.close))


def test_nothing_is_sampled_before_a_policy_nor_while_paused(subject: Subject, fresh: Engine) -> None:
    async def run() -> Generation:
        held = asyncio.create_task(fresh.generate(request(1)))
        await asyncio.sleep(0.1)
        assert not held.done() and fresh.capacity().version == -1
        await fresh.pause()
        version = await subject.serve(engine=fresh)
        await asyncio.sleep(0.1)
        assert not held.done()
        await fresh.resume()
        made = await held
        assert {v for _, v in made.versions} == {version} and fresh.capacity().version == version
        return made

    assert len(subject.run(run()).token_ids)


def test_a_generation_has_one_length_and_a_reason(subject: Subject) -> None:
    requests = [request(n, temperature=(0.0, 1.0, 1.7)[n % 3]) for n in range(24)]

    async def run() -> tuple[int, list[Generation]]:
        version = await subject.serve()
        return version, list(await asyncio.gather(*(subject.engine.generate(r) for r in requests)))

    version, all_made = subject.run(run())
    for asked, made in zip(requests, all_made, strict=True):
        assert made.token_ids.dtype == np.int32 and made.logprobs.dtype == np.float32
        assert 1 <= len(made.token_ids) == len(made.logprobs) <= asked.max_tokens
        assert made.versions == ((len(made.token_ids), version),)
        stopped = int(made.token_ids[-1]) in STOP
        assert made.stop_reason == ("stop" if stopped else "length")
        assert stopped or len(made.token_ids) == asked.max_tokens
        assert not np.isin(made.token_ids[:-1], list(STOP)).any()
        assert np.isfinite(made.logprobs).all() and (made.logprobs <= 1e-6).all()


def test_a_stop_token_ends_it_and_belongs_to_it(model: Subject) -> None:
    async def run() -> tuple[Generation, Generation]:
        await model.serve()
        free = await model.engine.generate(request(5, max_tokens=30, stop_ids=frozenset()))
        end = int(free.token_ids[10])
        return free, await model.engine.generate(request(5, max_tokens=30, stop_ids=frozenset({end})))

    free, stopped = model.run(run())
    first = free.token_ids.tolist().index(int(free.token_ids[10]))
    assert stopped.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert (free.stop_reason, stopped.stop_reason) == ("length", "stop")


def test_logprobs_are_of_the_unscaled_untruncated_distribution(model: Subject, tmp_path: Path) -> None:
    """Against the model's own forward pass in float64, whatever temperature and top_p chose the token. The weights are
    not those that the engine was started with: every one of them has to have been taken, a tied head too."""
    from services.rollout.engines.decoder import load_model

    other = scaled(model.weights, tmp_path / "other.safetensors", 1.3)
    reference = load_model(str(model.folder), "float64", "cpu")
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.3)
    requests = [
        request(n, seed=n, max_tokens=20, temperature=(0.0, 0.5, 1.0, 1.7)[n % 4], top_p=(1.0, 0.8)[n % 2])
        for n in range(16)
    ]

    async def run() -> list[tuple[Generation, np.ndarray[Any, Any]]]:
        await model.serve(other)
        made = await asyncio.gather(*(model.engine.generate(r) for r in requests))
        return [(m, await scores(model.engine, r, m)) for r, m in zip(requests, made, strict=True)]

    for asked, (made, scored) in zip(requests, model.run(run()), strict=True):
        ids = torch.from_numpy(np.concatenate([asked.prompt_ids, made.token_ids]).astype(np.int64))[None]
        with torch.no_grad():
            rows = torch.log_softmax(reference(input_ids=ids).logits[0], -1)[len(asked.prompt_ids) - 1 : -1]
        want = rows.gather(-1, ids[0, len(asked.prompt_ids) :, None])[:, 0].numpy()
        assert np.abs(made.logprobs - want).max() < CLOSE
        assert np.abs(scored - want).max() < CLOSE


def test_equal_seeds_give_equal_text_and_others_other_text(subject: Subject) -> None:
    async def run() -> tuple[list[Generation], list[Generation]]:
        await subject.serve()
        asked = [request(3, seed=seed, max_tokens=20, stop_ids=frozenset()) for seed in range(8)]
        alone = [await subject.engine.generate(r) for r in asked]
        return alone, list(await asyncio.gather(*(subject.engine.generate(r) for r in asked)))

    alone, together = subject.run(run())
    assert [m.token_ids.tolist() for m in alone] == [m.token_ids.tolist() for m in together]
    assert len({tuple(m.token_ids.tolist()) for m in alone}) == 8


def test_a_pause_keeps_what_runs(stepwise: Subject) -> None:
    """Not a token between pause and resume, and the text is that of an undisturbed request."""

    async def run() -> tuple[Generation, Generation]:
        engine = stepwise.engine
        await stepwise.serve()
        undisturbed = await engine.generate(long_request(7))
        running = asyncio.create_task(engine.generate(long_request(7)))
        await sampled(engine, 10)
        await engine.pause()
        await engine.pause()
        await asyncio.sleep(0.05)
        before = engine.capacity().sampled_tokens
        await asyncio.sleep(0.2)
        assert engine.capacity().sampled_tokens == before and not running.done()
        assert engine.capacity().running + engine.capacity().waiting == 1
        await engine.resume()
        await engine.resume()
        return undisturbed, await running

    undisturbed, paused = stepwise.run(run())
    assert undisturbed.token_ids.tolist() == paused.token_ids.tolist()


def test_what_runs_goes_on_with_the_new_policy_and_its_spans_say_so(
    stepwise: Subject, tmp_path: Path
) -> None:
    """Tokens before the change are of the old weights, later ones of the new; a new request is of the new alone."""
    other = scaled(stepwise.weights, tmp_path / "other.safetensors", 1.3)
    asked = long_request(5)

    async def run() -> tuple[int, int, Generation, Generation, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        engine = stepwise.engine
        old = await stepwise.serve()
        running = asyncio.create_task(engine.generate(asked))
        await sampled(engine, 20)
        await engine.pause()
        new = await stepwise.serve(other)
        await engine.resume()
        # Its prompt's keys are there, made by the old weights: they must not be used.
        mixed, later = await asyncio.gather(running, engine.generate(asked))
        by_new = await scores(engine, asked, later)
        await stepwise.serve()
        return old, new, mixed, later, by_new, await scores(engine, asked, mixed)

    old, new, mixed, later, by_new, by_old = stepwise.run(run())
    assert [version for _, version in mixed.versions] == [old, new]
    assert sum(length for length, _ in mixed.versions) == len(mixed.token_ids) == 400
    assert later.versions == ((400, new),)
    assert np.abs(later.logprobs - by_new).max() < CLOSE
    boundary = mixed.versions[0][0]
    assert boundary >= 20
    assert np.abs(mixed.logprobs - by_old)[:boundary].max() < CLOSE
    assert np.abs(mixed.logprobs - by_old)[boundary:].max() > 10 * CLOSE


def test_a_failed_canary_stops_production_until_a_good_one(stepwise: Subject, tmp_path: Path) -> None:
    """What ran goes on afterwards; none of its tokens is of the policy that was not attested."""
    other = scaled(stepwise.weights, tmp_path / "other.safetensors", 1.3)

    async def run() -> tuple[int, int, Generation, Generation]:
        engine = stepwise.engine
        good = await stepwise.serve()
        canary = await canary_of(engine)
        running = asyncio.create_task(engine.generate(long_request(8)))
        await sampled(engine, 20)
        wrong = stepwise.next_version()
        with pytest.raises(AttestationError, match=f"policy {wrong}: canary token"):
            await engine.load_policy(other, wrong, canary)
        held = asyncio.create_task(engine.generate(request(1)))
        await asyncio.sleep(0.2)
        assert not held.done() and not running.done() and engine.capacity().version == -1
        right = stepwise.next_version()
        await engine.load_policy(stepwise.weights, right, canary)
        return good, right, await running, await held

    good, right, running, held = stepwise.run(run())
    assert [version for _, version in running.versions] == [good, right]
    assert len(running.token_ids) == len(running.logprobs) == 400
    assert {version for _, version in held.versions} == {right}


def test_a_full_batch_does_not_hold_up_a_change_of_policy(stepwise: Subject) -> None:
    """More requests than places, none near its end: the new policy is proven while all of them still run."""

    async def run() -> None:
        engine = stepwise.engine
        await stepwise.serve()
        canary = await canary_of(engine)
        places = engine.capacity().max_batch
        tasks = [asyncio.create_task(engine.generate(long_request(n))) for n in range(places + 4)]
        await sampled(engine, 2 * places)
        await engine.load_policy(stepwise.weights, stepwise.next_version(), canary)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    stepwise.run(run())


@pytest.mark.parametrize("kind", ["truncated", "missing", "vocabulary", "dtype", "text"])
def test_weights_that_do_not_fit_are_named(model: Subject, tmp_path: Path, kind: str) -> None:
    tensors = load_file(str(model.weights))
    name, embedding = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"
    place = tmp_path / "broken.safetensors"
    changes: dict[str, tuple[dict[str, torch.Tensor], str]] = {
        "missing": ({k: v for k, v in tensors.items() if k != name}, "is missing"),
        "vocabulary": (
            tensors | {embedding: torch.cat([tensors[embedding], torch.zeros(9, 128)])},
            f"the vocabulary changed from {VOCABULARY} to {VOCABULARY + 9} tokens",
        ),
        "dtype": ({k: v.bfloat16() for k, v in tensors.items()}, "is BF16"),
    }
    words = "not a readable safetensors file"
    if kind == "truncated":
        place.write_bytes(model.weights.read_bytes()[:-5000])
    elif kind == "text":
        place.write_bytes(b"weights, it says")
    else:
        content, words = changes[kind]
        save_file(content, str(place))

    async def run() -> Generation:
        await model.serve()
        with pytest.raises(AttestationError, match=words):
            await model.engine.load_policy(place, model.next_version(), None)
        assert model.engine.capacity().version == -1
        await model.serve()
        return await model.engine.generate(request(2))

    assert len(model.run(run()).token_ids)


def test_what_cannot_be_served_is_refused(subject: Subject) -> None:
    async def run() -> None:
        await subject.serve()
        engine = subject.engine
        with pytest.raises(RequestTooLongError):
            await engine.generate(request(1, max_tokens=engine.longest))
        empty = request(1)
        with pytest.raises(GenerationFault, match="empty"):
            await engine.generate(type(empty)("e", np.zeros(0, dtype=np.int32), 5, STOP))
        if subject.has_weights:
            with pytest.raises(GenerationFault, match="vocabulary"):
                await engine.generate(
                    type(empty)("e", np.array([5, VOCABULARY], dtype=np.int32), 5, frozenset())
                )

    subject.run(run())


def test_a_cancelled_request_frees_its_place(subject: Subject) -> None:
    async def run() -> None:
        engine = subject.engine
        await subject.serve()
        tasks = [asyncio.create_task(engine.generate(long_request(n))) for n in range(24)]
        while not engine.capacity().running:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len((await engine.generate(request(1))).token_ids)
        while engine.capacity().running + engine.capacity().waiting:
            await asyncio.sleep(0.005)

    subject.run(run())


def test_close_fails_what_runs_and_ends_the_watch(subject: Subject, fresh: Engine) -> None:
    async def run() -> list[Any]:
        await subject.serve(engine=fresh)
        watching = asyncio.create_task(fresh.watch())
        await fresh.pause()
        running = [asyncio.create_task(fresh.generate(long_request(n))) for n in range(3)]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(fresh.close)
        fresh.close()
        await watching
        with pytest.raises(GenerationFault, match="closed"):
            await fresh.generate(request(1))
        return await asyncio.gather(*running, return_exceptions=True)

    assert all(isinstance(result, GenerationFault) for result in subject.run(run()))


def test_a_cut_request_is_what_there_is_of_it(subject: Subject) -> None:
    async def cut_short() -> Generation:
        """On a machine that is busy elsewhere a request may be done before it is cut: then it is asked again."""
        while True:
            cut = Cut()
            before = subject.engine.capacity().sampled_tokens
            asked = asyncio.create_task(subject.engine.generate(long_request(1, cut=cut)))
            while subject.has_weights and subject.engine.capacity().sampled_tokens == before:
                await asyncio.sleep(0.001)
            cut.ask("surplus")
            made = await asked
            if made.stop_reason == "cut":
                return made

    async def run() -> tuple[Generation, Generation, Generation, Any]:
        await subject.serve()
        early = Cut()
        early.ask("surplus")
        other = asyncio.create_task(subject.engine.generate(long_request(2)))
        made = await cut_short()
        scored = await scores(subject.engine, long_request(1), made) if len(made.token_ids) else made.logprobs
        return made, await other, await subject.engine.generate(long_request(3, cut=early)), scored

    made, other, nothing, scored = subject.run(run())
    assert len(made.token_ids) < 400
    assert len(made.token_ids) == len(made.logprobs) == sum(length for length, _ in made.versions)
    assert np.abs(scored - made.logprobs).max(initial=0) < CLOSE
    assert other.stop_reason == "length" and len(other.token_ids) == 400
    assert nothing.stop_reason == "cut" and nothing.versions == ()
    assert subject.engine.capacity().running == subject.engine.capacity().waiting == 0


def test_a_request_is_cut_while_it_is_held(subject: Subject) -> None:
    async def run() -> None:
        await subject.serve()
        await subject.engine.pause()
        cut = Cut()
        held = asyncio.create_task(unless_cut(cut, subject.engine.generate(long_request(1, cut=cut)), 0.1))
        await asyncio.sleep(0)
        cut.ask("hand_back")
        made = await held or NOTHING
        assert made.stop_reason == "cut" and not len(made.token_ids)
        await subject.engine.resume()
        assert len((await subject.engine.generate(long_request(1))).token_ids) == 400

    subject.run(run())
