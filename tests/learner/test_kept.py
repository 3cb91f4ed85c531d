"""Which checkpoints keep their weights: properties of the pure rule, and the rule at work."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_builders import RUN
from test_learner_resume import Life, log_of, run_settings

from services.learner.checkpoint_folders import CheckpointFolders
from services.learner.kept import KeepRule, Scores, kept_steps, scores_of
from services.learner.stages import evaluated_versions
from shared.contracts import Evaluation
from shared.contracts.control import DomainResult
from shared.errors import ConfigError, StorageError
from shared.storage import ObjectStore

STEPS = st.sets(st.integers(0, 60), max_size=30)
RULES = st.builds(KeepRule, last=st.integers(1, 5), every=st.integers(0, 9), best=st.integers(0, 4))
SCORES = st.builds(
    Scores,
    known=st.dictionaries(st.integers(0, 60), st.sampled_from((0.0, 0.25, 0.5, 1.0)), max_size=20),
    awaited=st.frozensets(st.integers(0, 60), max_size=3),
)


@given(complete=STEPS, rule=RULES, scores=SCORES, spare=STEPS)
def test_what_was_asked_for_and_no_more(
    complete: set[int], rule: KeepRule, scores: Scores, spare: set[int]
) -> None:
    kept = kept_steps(complete, rule, scores, spare)
    newest = set(sorted(complete)[-rule.last :])
    regular = {step for step in complete if rule.every and step % rule.every == 0}
    assert newest | regular | (complete & spare) <= kept <= complete
    others = kept - newest - regular - spare - (scores.awaited if rule.best else frozenset())
    assert len(others) <= rule.best and others <= scores.known.keys()
    scored = {step: scores.known[step] for step in complete & scores.known.keys()}
    if rule.best:
        dropped = [(scored[step], step) for step in scored.keys() - kept]
        best = sorted((value, step) for step, value in scored.items())[-rule.best :]
        assert all(step in kept for _, step in best)
        assert all(one < worst for one in dropped for worst in best)


@given(complete=STEPS, rule=RULES, scores=SCORES)
def test_pruning_twice_is_pruning_once(complete: set[int], rule: KeepRule, scores: Scores) -> None:
    once = kept_steps(complete, rule, scores)
    assert kept_steps(once, rule, scores) == once


def evaluation(version: int, **passed: int) -> Evaluation:
    return Evaluation(
        run_id=RUN, name=f"e{version}", stage_index=0, step=version, first_version=version,
        last_version=version + 1,
        domains={name: DomainResult(passed=value, count=10) for name, value in passed.items()},
    )  # fmt: skip


def test_scores_are_pass_rates_by_the_version_measured() -> None:
    found = [evaluation(0, sums=2, words=4), evaluation(4, sums=9, words=1)]
    assert scores_of(found, "", {0, 4, 8, 9}) == Scores({0: 0.3, 4: 0.5}, frozenset({8, 9}))
    assert scores_of(found, "words", ()).known == {0: 0.4, 4: 0.1}
    assert scores_of([evaluation(2)], "", {1}) == Scores({}, frozenset())


def test_versions_that_are_evaluated(tmp_path: Path) -> None:
    settings = run_settings(tmp_path)  # two steps, then three
    assert evaluated_versions(settings, 5) == {0, 2, 5}
    assert evaluated_versions(settings, 4) == {0, 2}
    other = settings.stages[1].model_copy(update={"start_from": "elsewhere"})
    moved = settings.model_copy(
        update={
            "stages": (settings.stages[0], other),
            "evaluation": settings.evaluation.model_copy(update={"at_start": False, "every_steps": 2}),
        }
    )
    assert evaluated_versions(moved, 99) == {2, 5, 6}


def test_every_second_and_the_best_keep_their_weights(tmp_path: Path) -> None:
    learner = {"micro_batch_tokens": 16, "keep_checkpoints": 1, "keep": {"every": 2, "best": 1}}
    settings = run_settings(tmp_path, learner=learner)
    trainer = Life(settings, log_of()).live()
    # Nobody has measured anything: 0, 2 and 5 (the ends of stages) would be awaited, `Life` tells of nothing.
    folders = CheckpointFolders(ObjectStore(settings.storage_uri), RUN)
    assert folders.held() == [0, 2, 4, 5]
    assert trainer.prune(Scores({0: 0.1, 2: 0.5, 4: 0.5})) == []
    assert len(folders.steps()) == 6
    plain = settings.learner.keep.model_copy(update={"every": 0})
    trainer._writer._settings = settings.model_copy(
        update={"learner": settings.learner.model_copy(update={"keep": plain})}
    )
    assert trainer.prune(Scores({0: 0.1, 2: 0.5}, frozenset({4}))) == [0]
    assert folders.held() == [2, 4, 5]
    for step in folders.steps():
        named = (folders.state(step, folders.manifest(step))["reference"] or {}).get("uri")
        stored = named and Path(named.removeprefix("file://")).is_file()
        assert stored or not named or step not in folders.held()


def test_a_domain_that_is_not_there_has_no_best(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="best_of domain 'sum' is not declared"):
        run_settings(tmp_path, learner={"keep": {"best": 1, "best_of": "sum"}})


def test_what_another_rank_wrote_elsewhere_makes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines that each write into a folder of their own."""
    exists = ObjectStore.exists
    monkeypatch.setattr(
        ObjectStore, "exists", lambda self, key: "optimizer-" not in key and exists(self, key)
    )
    with pytest.raises(StorageError, match=r"optimizer-00000-of-00001.* a place that all machines"):
        Life(run_settings(tmp_path), log_of()).live()
    assert CheckpointFolders(ObjectStore(f"file://{tmp_path / 'objects'}"), RUN).steps() == [
        0
    ]  # had no moments


def test_a_checkpoint_of_the_first_format_is_still_read(tmp_path: Path) -> None:
    """Format 1 had all of the optimizer in one file and nothing else that differs."""
    settings = run_settings(tmp_path)
    first = Life(settings, log_of(), kill="before publishing", at_step=4)
    with pytest.raises(BaseException, match="before publishing"):
        first.live()
    folder = tmp_path / "objects" / "checkpoints" / RUN / "00000004"
    manifest = json.loads((folder / "manifest.json").read_text())
    state = json.loads((folder / "state.json").read_text())
    files = manifest["files"]
    (folder / "optimizer.index.json").unlink()
    del files["optimizer.index.json"]
    files["optimizer.safetensors"] = files.pop("optimizer-00000-of-00001.safetensors")
    (folder / "optimizer-00000-of-00001.safetensors").rename(folder / "optimizer.safetensors")
    body = json.dumps({**state, "format": 1}).encode()
    (folder / "state.json").write_bytes(body)
    files["state.json"] = {"sha256": hashlib.sha256(body).hexdigest(), "size_bytes": len(body)}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 1}))
    quiet = Life(run_settings(tmp_path / "quiet"), log_of()).live()
    second = Life(settings, log_of()).live(seed=7)
    weights = quiet._policy.named_tensors()
    assert all(bool((t == weights[name]).all()) for name, t in second._policy.named_tensors().items())
