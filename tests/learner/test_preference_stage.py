"""Pairs through the loop: which two answers, what the loss does with them, what is booked, and stages in a chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_builders import RUN, demonstration, reward, sequence, trajectory
from learner_models import VOCABULARY, small_policy

from services.learner.batching import Batch
from services.learner.checkpoint import CheckpointStore
from services.learner.collate import collate
from services.learner.gradient import Gradient
from services.learner.intake.attempts import Terms
from services.learner.intake.groups import JudgedGroup, judge
from services.learner.intake.join import Arrival, FilledSlot
from services.learner.intake.offsets import Place
from services.learner.model import PolicyModel
from services.learner.objectives.preference import sigmoid_loss
from services.learner.objectives.presets import Objective, preset
from services.learner.optimizer import optimizer_tensors
from services.learner.pairing import batch_of
from services.learner.sources import check_sources
from services.learner.trainer import Trainer
from shared.contracts import Trajectory
from shared.errors import ConfigError, StorageError
from shared.settings import Settings, parse_settings
from shared.storage import ObjectStore

REFERENCE = small_policy(torch.float64, seed=3)


def terms(objective: Objective, **changes: Any) -> Terms:
    known = {"vocabulary": VOCABULARY, "max_tokens": 128, "version": 0, "max_lag": 1}
    return Terms(objective, **{**known, **changes})


def verified(index: int, rewards: list[float | None], name: str = "dpo") -> JudgedGroup:
    slots = {}
    for sample, value in enumerate(rewards):
        ids = [(5 * index + 3 * sample + t) % VOCABULARY for t in range(1 + (sample + index) % 4)]
        contexts = [sequence([1, 2, index], ids, [-2.0] * len(ids))]
        if sample == 1 and index == 1:
            contexts.append(sequence([9, index], [4, 5], [-1.5, -3.0]))
        made = trajectory(f"0-rl-{index:07d}", sample, size=len(rewards), sequences=tuple(contexts))
        slots[sample] = FilledSlot(made, reward(made, value), (), "")
    return judge(f"0-rl-{index:07d}", slots, terms(preset(name)))


@pytest.mark.parametrize(
    ("rewards", "pair", "fates"),
    [
        ([0.0, 1.0], (1, 0), ["trained", "trained"]),
        ([0.5, 0.0, 1.0, 0.2], (2, 1), ["unpaired", "trained", "trained", "unpaired"]),
        ([1.0, 0.0, 1.0, 0.0], (0, 1), ["trained", "trained", "unpaired", "unpaired"]),
        ([0.3, 0.3, 0.3], None, ["zero_signal"] * 3),
        ([None, 1.0, 0.0], (1, 2), ["unverifiable", "trained", "trained"]),
        ([None, 1.0], None, ["unverifiable", "zero_signal"]),
    ],
)
def test_best_against_worst_and_ties_are_skipped(
    rewards: list[float | None], pair: tuple[int, int] | None, fates: list[str]
) -> None:
    group = verified(0, rewards)
    assert group.pair == pair and group.signal is (pair is not None)
    assert list(group.fates().values()) == fates
    assert group.counts(terms(preset("dpo"))) is (pair is not None)
    dropped = ["skipped" if fate == "trained" else fate for fate in fates]
    assert list(group.fates(dropped=True).values()) == dropped


def gradient(
    policy: PolicyModel, batch: Batch, objective: Objective, tokens: int = 10_000
) -> tuple[float, torch.Tensor]:
    policy.model.zero_grad()
    reference = None if objective.reference_free else REFERENCE
    taken = Gradient(policy, micro_batch_tokens=tokens, reference=reference)
    sums = taken.accumulate(batch, objective, 0.0).sums
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return sums.loss, torch.cat(grads)


GROUPS = [[1.0, 0.0, 0.5], [0.0, 1.0], [0.2, 0.2], [0.0, 0.7, 1.0]]


@pytest.mark.parametrize("name", ["dpo", "dpo_length_normalised", "ipo", "simpo"])
def test_pairs_lose_the_same_however_they_are_cut(name: str) -> None:
    objective, policy = preset(name), small_policy(torch.float64)
    judged = [verified(index, list(rewards), name) for index, rewards in enumerate(GROUPS)]
    loss, whole = gradient(policy, batch_of(judged, objective, 1000, pack=False), objective)
    assert float(whole.norm()) > 1e-4
    for order, pack, micro in [(judged, True, 10_000), (judged[::-1], True, 16), (judged[::-1], False, 1)]:
        batch = batch_of(order, objective, 1000, pack)
        assert len(batch.pairs) == 3
        other, grads = gradient(policy, batch, objective, micro)
        assert other == pytest.approx(loss, rel=1e-6)
        assert float((grads - whole).norm()) <= 1e-6 * float(whole.norm())


def test_the_two_answers_of_a_pair_are_never_cut_apart() -> None:
    judged = [verified(index, [0.0, 1.0]) for index in range(4)]
    for pack in (True, False):
        cuts = batch_of(judged, preset("dpo"), 1000, pack).cuts(1)
        owners = [set(collate(rows).attempts.tolist()) for rows in cuts]
        assert sorted(map(sorted, owners)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_dpo_by_hand() -> None:
    """One pair: −log σ(β·((π_c − ref_c) − (π_r − ref_r))) with sums over the answers' tokens."""
    objective, policy = preset("dpo", beta=0.3), small_policy(torch.float64)
    ids = {0: [1, 2, 0, 5, 6], 1: [1, 2, 0, 7]}
    slots = {}
    for sample, tokens in ids.items():
        made = trajectory(sample=sample, sequences=(sequence(tokens[:3], tokens[3:]),))
        slots[sample] = FilledSlot(made, reward(made, float(sample == 0)), (), "")
    batch = batch_of([judge("0-rl-0000000", slots, terms(objective))], objective, 100)

    def said(model: PolicyModel, sample: int) -> torch.Tensor:
        row = torch.tensor(ids[sample])
        logprobs = torch.log_softmax(model.model(row[None]).logits[0], -1)
        return logprobs[:-1].gather(1, row[1:, None]).squeeze(1)[2:].sum()

    ratios = [said(policy, sample) - said(REFERENCE, sample).detach() for sample in (0, 1)]
    expected = sigmoid_loss(ratios[0] - ratios[1], 0.3)
    policy.model.zero_grad()
    expected.backward()
    by_hand = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    loss, found = gradient(policy, batch, objective)
    assert loss == pytest.approx(float(expected.detach()))
    assert float((found - by_hand).norm()) <= 1e-6 * float(by_hand.norm())


def settings_of(folder: Path, *stages: dict[str, Any], **changes: Any) -> Settings:
    document: dict[str, Any] = {
        "run": {"name": RUN, "folder": str(folder / "runs")},
        "storage": {"uri": f"file://{folder / 'objects'}"},
        "model": {"path": str(folder / "model")},
        "domains": [{"name": "sums"}],
        "scheduler": {"max_lag": 50},
        "learner": {"micro_batch_tokens": 64},
        "stages": list(stages),
    }
    return parse_settings({**document, **changes})


class Run:
    def __init__(self, settings: Settings, seed: int = 0) -> None:
        self.store = ObjectStore(settings.storage_uri)
        self.policy = small_policy(seed=seed)
        self.trainer = Trainer(settings, self.store, self.policy)
        self.first = self.trainer.open().policy
        self.offset = 0

    def feed(self, made: Trajectory, value: float | None = None) -> None:
        self.trainer.intake.trajectory(Arrival(made, Place("t", 0, self.offset)))
        if value is not None:
            self.trainer.intake.reward(Arrival(reward(made, value), Place("r", 0, self.offset)))
        self.offset += 1

    def pair(self, stage: int, index: int) -> None:
        """A line of a data set: chosen [4, 5], rejected [6, 7]."""
        for sample, ids in enumerate(([4, 5], [6, 7])):
            made = demonstration(f"{stage}-preference-{index:07d}", name=f"{stage}/{index}/{sample}")
            slot = made.slot.model_copy(update={"sample_index": sample})
            update = {"slot": slot, "stage": "preference", "stage_index": stage}
            update["sequences"] = (sequence([1, 2, index % 5], ids, [0.0, 0.0], version=-1),)
            self.feed(made.model_copy(update=update))

    def step(self) -> Any:
        trainer = self.trainer
        trainer.review()
        groups = trainer.next_batch()
        assert groups is not None
        _, metrics = trainer.train(groups)
        record, _ = trainer.book(groups, metrics, {})
        self.announced = trainer.write(trainer.take_copies(trainer.seal({})))
        return record

    def logprobs(self, ids: list[int]) -> float:
        return float(self.policy.score(torch.tensor([1, 2, 0, *ids]))[3:].sum())


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    return {
        "kind": "preference", "data": str(path), "steps": 4, "groups_per_step": 2, "learning_rate": 1e-2,
    }  # fmt: skip


def test_a_data_set_of_pairs_is_learnt_and_booked(tmp_path: Path, pairs: dict[str, Any]) -> None:
    run = Run(settings_of(tmp_path, pairs))
    before = run.logprobs([4, 5]) - run.logprobs([6, 7])
    records = []
    for number in range(4):
        run.pair(0, 2 * number)
        run.pair(0, 2 * number + 1)
        records.append(run.step())
    assert run.logprobs([4, 5]) - run.logprobs([6, 7]) > before + 1
    assert records[0].loss == pytest.approx(0.6931, abs=1e-3) and records[3].loss < 0.6
    assert records[0].loss_terms["pair_margin"] == pytest.approx(0, abs=1e-5)
    assert records[3].loss_terms["pair_accuracy"] == 1 and records[3].kl > 0
    assert all(record.trained_trajectories == len(record.slots()) == 4 for record in records)
    assert records[0].tokens == {"trained": 8} and records[0].effective_sample_size == pytest.approx(1)


def test_half_a_pair_is_no_pair(tmp_path: Path, pairs: dict[str, Any]) -> None:
    run = Run(settings_of(tmp_path, pairs))
    run.pair(0, 0)
    slot = run.trainer.intake._open["0-preference-0000000"].slots
    long = demonstration("0-preference-0000000").model_copy(
        update={"sequences": (sequence([1] * 100, [4] * 100, [0.0] * 100, version=-1),)}
    )
    slot[1] = FilledSlot(long, None, (), "")
    fates, refused = run.trainer.review()
    assert fates[0].fates == ("zero_signal", "over_length") and len(refused) == 1


def test_a_sampled_attempt_is_no_line_of_a_data_set(tmp_path: Path, pairs: dict[str, Any]) -> None:
    run = Run(settings_of(tmp_path, pairs))
    for sample in range(2):
        made = trajectory("0-preference-0000000", sample, stage="preference")
        run.feed(made, float(sample))
    _, refused = run.trainer.review()
    assert "sampling mode 'sampled' in a stage that learns from a data set" in refused[0][3].reason


def test_another_data_set_is_refused_on_resume(tmp_path: Path, pairs: dict[str, Any]) -> None:
    settings = settings_of(tmp_path, pairs)
    Run(settings)
    Path(pairs["data"]).write_text('{"prompt": "q", "chosen": "a", "rejected": "c"}\n')
    with pytest.raises(ConfigError, match=r"another stages \(0: the content of its data file\)"):
        Run(settings)
    Path(pairs["data"]).unlink()
    with pytest.raises(ConfigError, match=r"pairs.jsonl' cannot be read"):
        Run(settings)


def test_a_preference_stage_resumes_to_the_bit(tmp_path: Path, pairs: dict[str, Any]) -> None:
    def go(run: Run, numbers: range) -> bytes:
        for number in numbers:
            run.pair(0, 2 * number)
            run.pair(0, 2 * number + 1)
            run.step()
        moments = optimizer_tensors(run.policy, run.trainer.replica.optimizer)
        return b"".join(tensor.numpy().tobytes() for tensor in moments.values())

    whole = go(Run(settings_of(tmp_path / "whole", pairs)), range(3))
    settings = settings_of(tmp_path / "cut", pairs)
    go(Run(settings), range(1))
    assert go(Run(settings, seed=8), range(1, 3)) == whole


SFT = {"kind": "sft", "steps": 1, "groups_per_step": 1, "learning_rate": 1e-2}
RL = {"kind": "rl", "steps": 2, "groups_per_step": 1, "group_size": 2, "learning_rate": 1e-2}


def rollout(run: Run, stage: int, index: int, version: int, kind: str = "rl") -> None:
    for sample in range(2):
        made = trajectory(
            f"{stage}-{kind}-{index:07d}", sample, stage=kind, stage_index=stage, version=version,
            sequences=(sequence([1, 2, 3], [4 + sample, 5], [-3.0, -3.0], version=version),),
        )  # fmt: skip
        run.feed(made, float(sample))


def test_a_chain_of_all_three_kinds(tmp_path: Path) -> None:
    preference = {**RL, "kind": "preference", "steps": 1}
    run = Run(settings_of(tmp_path, SFT, preference, RL))
    run.feed(demonstration("0-sft-0000000"))
    assert run.step().stage == "sft"
    rollout(run, 1, 0, version=1, kind="preference")
    record = run.step()
    assert record.stage == "preference" and record.loss == pytest.approx(0.6931, abs=1e-3)
    rollout(run, 2, 0, version=2)
    assert run.step().stage == "rl"
    assert [g.fates for g in record.groups] == [("trained", "trained")]


def test_a_first_stage_starts_from_a_folder_or_a_checkpoint(tmp_path: Path) -> None:
    other = small_policy(seed=7)
    other.model.save_pretrained(str(tmp_path / "other"))
    run = Run(settings_of(tmp_path / "a", {**RL, "start_from": str(tmp_path / "other")}))
    assert same(run.policy, other) and run.first.version == 0
    folder = tmp_path / "a" / "objects" / "checkpoints" / RUN / "00000000"
    for source in (str(folder), f"file://{folder}"):
        place = tmp_path / source.replace("/", "_")[-20:] / str(len(source))
        again = Run(settings_of(place, {**RL, "start_from": source}), seed=1)
        assert same(again.policy, other)
        assert again.first.weights.sha256 == run.first.weights.sha256


def same(left: PolicyModel, right: PolicyModel) -> bool:
    pairs = zip(left.named_tensors().values(), right.named_tensors().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_a_later_stage_takes_other_weights_as_a_step_of_its_own(tmp_path: Path) -> None:
    other = small_policy(seed=7)
    other.model.save_pretrained(str(tmp_path / "other"))
    preference = {**RL, "kind": "preference", "start_from": str(tmp_path / "other")}
    settings = settings_of(tmp_path, SFT, preference)
    run = Run(settings)
    assert run.trainer.starts_from == ""
    run.feed(demonstration("0-sft-0000000"))
    run.step()
    run = Run(settings, seed=5)  # a kill between the two
    trainer = run.trainer
    assert trainer.starts_from == str(tmp_path / "other") and not same(run.policy, other)
    record = trainer.adopt()
    announced = trainer.write(trainer.take_copies(trainer.seal({})))
    assert (record.step, record.stage_index, record.stage_step, record.slots()) == (2, 1, 0, ())
    assert announced.policy.version == 2 and announced.policy.stage == "preference"
    for trainer in (run.trainer, Run(settings, seed=6).trainer):
        assert trainer.starts_from == "" and same(trainer._policy, other)
        reference = trainer.replica.reference
        assert reference is not None and same(reference, other)
        assert trainer._watch._state.good == (2,)
    rollout(run, 1, 0, version=1, kind="preference")  # made by the policy of the stage before
    fates, refused = run.trainer.review()
    assert fates[0].fates == ("stale", "stale")
    assert refused[0][3].reason == "sampled by version 1, now 2, the stage began with 2"
    rollout(run, 1, 1, version=2, kind="preference")
    assert run.step().stage_step == 1


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("nothing", ConfigError, "is no checkpoint .* and no Hugging Face folder"),
        ("wider", ConfigError, "of another model than model.path: tensor .* the run's is"),
        ("pruned", ConfigError, "its weights.safetensors was pruned"),
        ("damaged", StorageError, "its manifest.json is damaged"),
    ],
)
def test_weights_that_cannot_be_started_from_are_named(
    tmp_path: Path, what: str, error: type[Exception], message: str
) -> None:
    source = tmp_path / "a" / "objects" / "checkpoints" / RUN / "00000000"
    Run(settings_of(tmp_path / "a", RL))
    if what == "nothing":
        source = tmp_path / "nothing"
    elif what == "pruned":
        (source / "weights.safetensors").unlink()
    elif what == "damaged":
        (source / "manifest.json").write_text("{}")
    else:
        from transformers import LlamaConfig, LlamaForCausalLM

        shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
        wide = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1))
        source = tmp_path / "wide"
        wide.save_pretrained(str(source))
    with pytest.raises(error, match=message):
        Run(settings_of(tmp_path / "b", {**RL, "start_from": str(source)}))
    assert CheckpointStore(ObjectStore(f"file://{tmp_path / 'b' / 'objects'}"), RUN).steps() == []


def test_what_a_later_stage_begins_with_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    own = str(tmp_path / "objects" / "checkpoints" / RUN / "00000001")
    for source in (own, f"file://{own}", "s3://bucket/checkpoints/other/00000004"):
        check_sources(settings_of(tmp_path, RL, {**RL, "start_from": source}))
    with pytest.raises(ConfigError, match="start_from '/nowhere/model' is no checkpoint"):
        check_sources(settings_of(tmp_path, RL, {**RL, "start_from": "/nowhere/model"}))
