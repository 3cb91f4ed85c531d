"""The transformers engine against an independent full forward pass, and its behaviour as a batch."""

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
    GenerateRequest,
    Generation,
    GenerationFault,
    RequestTooLongError,
    draws,
)
from services.rollout.engines.decoder import Decoder, load_model
from services.rollout.engines.transformers import TransformersEngine
from shared.contracts import Canary
from shared.errors import AttestationError, ConfigError, DependencyError

STOP = frozenset({2})


@pytest.fixture
def weights(tiny_folder: Path) -> Path:
    return tiny_folder / "model.safetensors"


@pytest.fixture
def engine(tiny_model: Any) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(Decoder(tiny_model, 16), max_batch=16, max_batch_tokens=2048)
    yield engine
    engine.close()


def request(number: int, length: int = 0, **changes: Any) -> GenerateRequest:
    """The prompt and, unless changed, all else follow from `number`."""
    generator = np.random.default_rng(number)
    prompt = generator.integers(3, 103, size=length or int(generator.integers(1, 30))).astype(np.int32)
    values: dict[str, Any] = {"max_tokens": int(generator.integers(1, 40)), "stop_ids": STOP, "seed": number}
    return GenerateRequest(f"r{number}", prompt, **(values | changes))


async def generate_all(engine: TransformersEngine, requests: list[GenerateRequest]) -> list[Generation]:
    return list(await asyncio.gather(*(engine.generate(r) for r in requests)))


def full_logprobs(model: Any, prompt: np.ndarray, completion: np.ndarray) -> torch.Tensor:
    """By the model's own plain forward pass in float64: no cache, no mask, no batch."""
    ids = torch.from_numpy(np.concatenate([prompt, completion]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double()
    rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    return rows.gather(-1, ids[0, len(prompt) :, None])[:, 0]


def reference(tiny_folder: Path) -> Any:
    return load_model(str(tiny_folder), "float64", "cpu")


def test_logprobs_equal_a_full_pass(engine: TransformersEngine, weights: Path, tiny_folder: Path) -> None:
    """Sixty requests through sixteen places: rows join and leave all the time, prompts are shared."""
    requests = [
        request(seed // 3, seed=seed, temperature=(0.0, 1.0, 1.7)[seed % 3], top_p=1.0 if seed % 2 else 0.9)
        for seed in range(60)
    ]

    async def run() -> list[Generation]:
        await engine.load_policy(weights, 0, None)
        return await generate_all(engine, requests)

    model = reference(tiny_folder)
    for asked, made in zip(requests, asyncio.run(run()), strict=True):
        assert made.token_ids.dtype == np.int32 and made.logprobs.dtype == np.float32
        assert 1 <= len(made.token_ids) == len(made.logprobs) <= asked.max_tokens
        assert made.versions == ((len(made.token_ids), 0),)
        stopped = int(made.token_ids[-1]) in STOP
        assert made.stop_reason == ("stop" if stopped else "length")
        assert stopped or len(made.token_ids) == asked.max_tokens
        assert not np.isin(made.token_ids[:-1], list(STOP)).any()
        want = full_logprobs(model, asked.prompt_ids, made.token_ids)
        assert float((torch.from_numpy(made.logprobs).double() - want).abs().max()) < 1e-4


def test_a_request_does_not_depend_on_its_company(engine: TransformersEngine, weights: Path) -> None:
    requests = [request(seed, temperature=float(seed % 2)) for seed in range(24)]

    async def run() -> tuple[list[Generation], list[Generation]]:
        await engine.load_policy(weights, 0, None)
        alone = [await engine.generate(r) for r in requests]
        return alone, await generate_all(engine, requests)

    for one, many in zip(*asyncio.run(run()), strict=True):
        assert one.token_ids.tolist() == many.token_ids.tolist()
        assert np.allclose(one.logprobs, many.logprobs, atol=1e-5)


def test_seeds_make_samples_of_a_group_differ(engine: TransformersEngine, weights: Path) -> None:
    async def run() -> list[Generation]:
        await engine.load_policy(weights, 0, None)
        return await generate_all(engine, [request(1, seed=seed, max_tokens=20) for seed in range(8)])

    texts = {tuple(made.token_ids.tolist()) for made in asyncio.run(run())}
    assert len(texts) == 8
    assert draws(1, 4).tolist() == draws(1, 8)[:4].tolist() != draws(2, 4).tolist()


def test_nothing_is_decoded_before_a_policy(engine: TransformersEngine, weights: Path) -> None:
    async def run() -> Generation:
        held = asyncio.create_task(engine.generate(request(1)))
        await asyncio.sleep(0.05)
        assert not held.done() and engine.capacity().version == -1
        await engine.load_policy(weights, 7, None)
        return await held

    made = asyncio.run(run())
    assert made.versions == ((len(made.token_ids), 7),)


def test_a_swap_between_steps_changes_running_sequences(
    engine: TransformersEngine, weights: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    """Tokens before the swap are of the old weights, tokens after it of the new on the keys that are there."""
    changed = {name: tensor * 1.05 for name, tensor in load_file(str(weights)).items()}
    save_file(changed, str(tmp_path / "new.safetensors"))
    asked = request(5, length=9, max_tokens=400, stop_ids=frozenset())

    async def run() -> tuple[Generation, Generation]:
        await engine.load_policy(weights, 3, None)
        running = asyncio.create_task(engine.generate(asked))
        while engine.capacity().decode_steps < 20:
            await asyncio.sleep(0.001)
        await engine.load_policy(tmp_path / "new.safetensors", 4, None)
        # Its prompt is in the block, by the old weights: it must be read again.
        return tuple(await asyncio.gather(running, engine.generate(asked)))  # type: ignore[return-value]

    mixed, fresh = asyncio.run(run())
    assert [version for _, version in mixed.versions] == [3, 4]
    assert sum(length for length, _ in mixed.versions) == 400
    assert fresh.versions == ((400, 4),)
    old_part = mixed.versions[0][0]
    want = full_logprobs(reference(tiny_folder), asked.prompt_ids, mixed.token_ids)
    got = torch.from_numpy(mixed.logprobs).double()
    assert float((got - want)[:old_part].abs().max()) < 1e-4
    assert float((got - want)[old_part:].abs().max()) > 1e-3
    model = reference(tiny_folder)
    model.load_state_dict({name: tensor.double() for name, tensor in changed.items()}, strict=False)
    want = full_logprobs(model, asked.prompt_ids, fresh.token_ids)
    assert float((torch.from_numpy(fresh.logprobs).double() - want).abs().max()) < 1e-4


def test_cancelled_requests_give_their_places_back(engine: TransformersEngine, weights: Path) -> None:
    async def run() -> Generation:
        await engine.load_policy(weights, 0, None)
        long = [request(seed, max_tokens=450, stop_ids=frozenset()) for seed in range(20)]
        running = [asyncio.create_task(engine.generate(r)) for r in long]
        await asyncio.sleep(0.05)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        made = await engine.generate(request(99))
        assert engine.capacity().running == engine.capacity().waiting == 0
        return made

    assert len(asyncio.run(run()).token_ids)


def test_score_equals_a_full_pass(engine: TransformersEngine, tiny_folder: Path) -> None:
    rows = [request(seed).prompt_ids for seed in range(6)]
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    got = asyncio.run(engine.score(np.concatenate(rows), lengths))
    model = reference(tiny_folder)
    for row, part in zip(rows, np.split(got, np.cumsum(lengths)[:-1]), strict=True):
        assert part[0] == 0
        if len(row) > 1:
            want = full_logprobs(model, row[:1], row[1:])
            assert float((torch.from_numpy(part[1:]).double() - want).abs().max()) < 1e-4


def make_canary(engine: TransformersEngine, shift: float = 0.0) -> Canary:
    token_ids = np.arange(3, 33, dtype=np.int32)
    lengths = np.array([10, 20], dtype=np.int32)
    logprobs = asyncio.run(engine.score(token_ids, lengths)) + np.float32(shift)
    return Canary(token_ids=token_ids, lengths=lengths, logprobs=logprobs, tolerance=1e-3)


def test_a_wrong_canary_stops_the_engine_until_a_good_one(engine: TransformersEngine, weights: Path) -> None:
    good, wrong = make_canary(engine), make_canary(engine, shift=0.01)

    async def run() -> Generation:
        await engine.load_policy(weights, 1, good)
        with pytest.raises(AttestationError, match="policy 2: canary token"):
            await engine.load_policy(weights, 2, wrong)
        held = asyncio.create_task(engine.generate(request(1)))
        await asyncio.sleep(0.05)
        assert not held.done() and engine.capacity().version == -1
        await engine.load_policy(weights, 2, good)
        return await held

    assert asyncio.run(run()).versions[0][1] == 2


def test_weights_that_do_not_fit_are_named_and_change_nothing(
    engine: TransformersEngine, weights: Path, tmp_path: Path
) -> None:
    tensors = load_file(str(weights))
    name = "model.layers.1.mlp.up_proj.weight"
    broken = {
        "missing": {k: v for k, v in tensors.items() if k != name},
        "is not in the model": tensors | {"model.extra": torch.zeros(1)},
        "has shape": tensors | {name: tensors[name].t().contiguous()},
        "is BF16": {k: v.bfloat16() if k == name else v for k, v in tensors.items()},
    }
    before = make_canary(engine).logprobs
    for number, (message, content) in enumerate(broken.items()):
        save_file(content, str(tmp_path / f"{number}.safetensors"))
        with pytest.raises(AttestationError, match=message):
            asyncio.run(engine.load_policy(tmp_path / f"{number}.safetensors", 1, None))
    (tmp_path / "short.safetensors").write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(AttestationError, match="not a readable safetensors file"):
        asyncio.run(engine.load_policy(tmp_path / "short.safetensors", 1, None))
    assert np.array_equal(make_canary(engine).logprobs, before)
    assert engine.capacity().version == -1


def test_a_tied_tensor_may_be_in_the_file_twice(
    engine: TransformersEngine, weights: Path, tmp_path: Path
) -> None:
    tensors = load_file(str(weights))
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, str(tmp_path / "tied.safetensors"))
    asyncio.run(engine.load_policy(tmp_path / "tied.safetensors", 1, make_canary(engine)))
    save_file(tensors | {"lm_head.weight": head + 1}, str(tmp_path / "untied.safetensors"))
    with pytest.raises(AttestationError, match="ties"):
        asyncio.run(engine.load_policy(tmp_path / "untied.safetensors", 2, None))


def test_broken_weights_fail_the_request_and_name_the_policy(
    engine: TransformersEngine, weights: Path, tmp_path: Path
) -> None:
    tensors = load_file(str(weights))
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], float("nan"))
    save_file(tensors, str(tmp_path / "nan.safetensors"))

    async def run() -> Generation:
        await engine.load_policy(tmp_path / "nan.safetensors", 9, None)
        with pytest.raises(GenerationFault, match="policy 9 gives log-probability nan"):
            await engine.generate(request(1))
        await engine.load_policy(weights, 10, None)
        return await engine.generate(request(1))

    assert np.isfinite(asyncio.run(run()).logprobs).all()


def test_requests_that_can_never_fit_are_refused(engine: TransformersEngine) -> None:
    with pytest.raises(RequestTooLongError, match="pass 512"):
        asyncio.run(engine.generate(request(1, length=500, max_tokens=13)))
    with pytest.raises(GenerationFault, match="vocabulary"):
        asyncio.run(engine.generate(GenerateRequest("x", np.array([1, 5000], dtype=np.int32), 4, STOP)))


def test_a_late_sample_shares_the_prompt_of_a_running_one(engine: TransformersEngine, weights: Path) -> None:
    """The same tokens as alone, whether its prompt was read or copied."""
    asked = [request(3, length=20, seed=seed, max_tokens=200, stop_ids=frozenset()) for seed in range(2)]
    reads = []
    decoder, read = engine._decoder, engine._decoder.read_prompts
    decoder.read_prompts = lambda *a: reads.append(a) or read(*a)  # type: ignore[method-assign,func-returns-value]

    async def run() -> tuple[Generation, Generation]:
        await engine.load_policy(weights, 0, None)
        alone = await engine.generate(asked[1])
        first = asyncio.create_task(engine.generate(asked[0]))
        steps = engine.capacity().decode_steps
        while engine.capacity().decode_steps < steps + 5:
            await asyncio.sleep(0.001)
        late = await engine.generate(asked[1])
        await first
        return alone, late

    alone, late = asyncio.run(run())
    assert len(reads) == 2
    assert alone.token_ids.tolist() == late.token_ids.tolist()


def test_a_prompt_that_older_weights_read_is_read_again(
    engine: TransformersEngine, tiny_folder: Path, tmp_path: Path
) -> None:
    """Keys and values of one version are never shared with a request that came after the next was loaded."""
    weights, other = tiny_folder / "model.safetensors", tmp_path / "other.safetensors"
    save_file({name: tensor * 1.1 for name, tensor in load_file(weights).items()}, other)
    asked = [request(3, length=20, seed=seed, max_tokens=200, stop_ids=frozenset()) for seed in range(2)]
    reads = []
    decoder, read = engine._decoder, engine._decoder.read_prompts
    decoder.read_prompts = lambda *a: reads.append(a) or read(*a)  # type: ignore[method-assign,func-returns-value]

    async def run() -> tuple[Generation, Generation, Generation]:
        await engine.load_policy(weights, 0, None)
        first = asyncio.create_task(engine.generate(asked[0]))
        steps = engine.capacity().decode_steps
        while engine.capacity().decode_steps < steps + 5:
            await asyncio.sleep(0.001)
        await engine.load_policy(other, 1, None)
        late = await engine.generate(asked[1])
        return await first, late, await engine.generate(asked[1])

    first, late, alone = asyncio.run(run())
    assert [version for _, version in first.versions] == [0, 1] and len(reads) == 3
    assert late.token_ids.tolist() == alone.token_ids.tolist()
    np.testing.assert_allclose(late.logprobs, alone.logprobs, atol=1e-5)


def test_the_block_grows_under_running_rows(
    engine: TransformersEngine, weights: Path, tiny_folder: Path
) -> None:
    small = request(1, length=5, max_tokens=55, stop_ids=frozenset())
    larger = [request(n, length=60 * n, max_tokens=30, stop_ids=frozenset()) for n in (2, 3, 4)]

    async def run() -> list[Generation]:
        await engine.load_policy(weights, 0, None)
        running = asyncio.create_task(engine.generate(small))
        while engine.capacity().decode_steps < 10:
            await asyncio.sleep(0.001)
        others = await generate_all(engine, larger)
        return [await running, *others]

    model = reference(tiny_folder)
    for asked, made in zip([small, *larger], asyncio.run(run()), strict=True):
        want = full_logprobs(model, asked.prompt_ids, made.token_ids)
        assert float((torch.from_numpy(made.logprobs).double() - want).abs().max()) < 1e-4


def test_close_fails_what_still_runs(tiny_model: Any, weights: Path) -> None:
    engine = TransformersEngine(Decoder(tiny_model, 4), max_batch=4, max_batch_tokens=2048)

    async def run() -> list[Any]:
        await engine.load_policy(weights, 0, None)
        asked = [request(seed, max_tokens=450, stop_ids=frozenset()) for seed in range(8)]
        running = [asyncio.create_task(engine.generate(r)) for r in asked]
        await asyncio.sleep(0.03)
        await asyncio.to_thread(engine.close)
        engine.close()
        with pytest.raises(GenerationFault, match="closed"):
            await engine.generate(request(1))
        return await asyncio.gather(*running, return_exceptions=True)

    assert all(isinstance(result, GenerationFault) for result in asyncio.run(run()))


def test_a_model_that_cannot_be_served_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(DependencyError, match="no config.json"):
        load_model(str(tmp_path), "float32", "cpu")
    sliding = (
        (tiny_folder / "config.json").read_text().replace('"vocab_size"', '"sliding_window": 8, "vocab_size"')
    )
    (tmp_path / "config.json").write_text(sliding)
    (tmp_path / "model.safetensors").write_bytes((tiny_folder / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="full attention"):
        load_model(str(tmp_path), "float32", "cpu")
