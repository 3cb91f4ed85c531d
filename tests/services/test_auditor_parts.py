"""The auditor's pure parts: what they notice, what they leave alone, and that their memory is bounded."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.verifier.auditor.duplicates import Duplicates, normalised
from services.verifier.auditor.jumps import PassRateJumps
from services.verifier.auditor.length import LengthAgainstReward
from services.verifier.auditor.repetition import Repetitions
from services.verifier.auditor.rules import FlagRules
from services.verifier.auditor.sampling import is_chosen
from shared.settings import AuditRule
from shared.verification.judgement import Judgement

LONG = "The answer follows from the second law, applied twice to the closed system of both gases."
PASSED, FAILED = Judgement.passed(), Judgement.failed("no")


def test_the_chosen_are_the_same_everywhere_and_their_share_is_right() -> None:
    ids = [f"trajectory-{n}" for n in range(4000)]
    chosen = {name for name in ids if is_chosen("audit", name, 0.1)}
    assert 320 < len(chosen) < 480
    assert chosen == {name for name in reversed(ids) if is_chosen("audit", name, 0.1)}
    assert chosen < {name for name in ids if is_chosen("audit", name, 0.3)}, (
        "a larger share keeps the smaller"
    )
    other = {name for name in ids if is_chosen("repeat", name, 0.1)}
    assert 15 < len(chosen & other) < 80, "the two shares are independent"
    assert not any(is_chosen("audit", name, 0.0) for name in ids)
    assert all(is_chosen("audit", name, 1.0) for name in ids)


def test_one_attempt_with_two_verdicts_proves_a_pure_domain_flaky() -> None:
    repetitions = Repetitions()
    assert repetitions.observe("sums", "t0", [PASSED, PASSED, PASSED], ran_code=False) == ()
    (found,) = repetitions.observe("sums", "t1", [PASSED, FAILED, PASSED], ran_code=False)
    assert str(found) == "t1: passed, failed"
    assert repetitions.observe("other", "t2", [FAILED, FAILED], ran_code=False) == ()
    repetitions.lift("sums")
    assert repetitions.observe("sums", "t3", [PASSED, PASSED], ran_code=False) == ()


def test_partial_rewards_must_agree_and_reasons_need_not() -> None:
    repetitions = Repetitions()
    alike = [Judgement.partial(0.5, "half"), Judgement.partial(0.5, "one of two")]
    assert repetitions.observe("d", "t0", alike, ran_code=False) == ()
    unlike = [Judgement.partial(0.5, "half"), Judgement.partial(0.75, "half")]
    (found,) = repetitions.observe("d", "t1", unlike, ran_code=False)
    assert found.verdicts == ("partial 0.5", "partial 0.75")


def test_a_program_with_a_coin_in_it_does_not_make_its_domain_flaky_and_a_broken_domain_is_found() -> None:
    rng = random.Random(1)
    repetitions = Repetitions()
    for n in range(200):
        coin = [PASSED, FAILED] if n % 20 == 0 else [PASSED, PASSED]
        assert repetitions.observe("code", f"t{n}", coin, ran_code=True) == ()
    found = ()
    for n in range(100):
        verdicts = [PASSED, FAILED] if rng.random() < 0.5 else [FAILED, FAILED]
        found = found or repetitions.observe("code", f"u{n}", verdicts, ran_code=True)
    assert len(found) == 5 and all(example.verdicts == ("passed", "failed") for example in found)


def test_a_long_answer_that_half_of_the_group_gives_is_a_duplicate() -> None:
    duplicates = Duplicates()
    variants = [LONG, LONG.upper(), f"  {LONG} \n", LONG.replace(" ", "  ")]
    assert [duplicates.observe("g", f"t{n}", text) for n, text in enumerate(variants)] == [
        False, False, True, True,
    ]  # fmt: skip
    assert not duplicates.observe("g", "t4", LONG + " But see below.")
    assert not duplicates.observe("h", "t5", LONG), "another group has its own answers"
    assert not any(duplicates.observe("sums", f"t{n}", "Answer: 42") for n in range(20)), "short ones agree"


def test_an_attempt_that_is_delivered_again_is_no_duplicate_of_itself() -> None:
    duplicates = Duplicates()
    assert not any(duplicates.observe("g", "t0", LONG) for _ in range(50))


def test_groups_are_forgotten_oldest_first() -> None:
    duplicates = Duplicates(groups=10)
    for n in range(1000):
        duplicates.observe(f"g{n}", f"t{n}", LONG)
    assert len(duplicates) == 10


@given(st.lists(st.text("abcXYZ,.½", min_size=1, max_size=9), min_size=1, max_size=9))
def test_case_width_and_white_space_make_no_other_answer(words: list[str]) -> None:
    text = " ".join(words)
    assert normalised("\n\t ".join(words).upper()) == normalised(f" {text} ") == normalised(normalised(text))


def test_the_running_correlation_is_pearson_s() -> None:
    """Over 64 values the weights lie between 0.78 and 1, so it stays close to the unweighted one."""
    rng = random.Random(2)
    length = LengthAgainstReward()
    pairs = [(rng.randrange(10, 200), rng.random()) for _ in range(64)]
    pairs = [(tokens, reward + tokens / 400) for tokens, reward in pairs]
    for tokens, reward in pairs:
        length.observe("d", tokens, reward)
    exact = statistics.correlation([float(t) for t, _ in pairs], [r for _, r in pairs])
    assert length.correlation("d") == pytest.approx(exact, abs=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1)), max_size=200))
def test_a_correlation_is_one_whatever_comes(pairs: list[tuple[int, float]]) -> None:
    length = LengthAgainstReward()
    for tokens, reward in pairs:
        length.observe("d", tokens, reward)
        assert -1.0 <= length.correlation("d") <= 1.0


def test_a_judge_of_length_is_noticed_and_an_honest_one_is_not() -> None:
    rng = random.Random(3)
    judge, honest, constant = LengthAgainstReward(), LengthAgainstReward(), LengthAgainstReward()
    by_length = [judge.observe("d", tokens, min(1.0, tokens / 100)) for tokens in _lengths(rng, 200)]
    assert not any(by_length[:63]) and all(by_length[63:])
    # Cut off at 100 tokens: long ones fail, short ones pass three times in four.
    fair = [
        honest.observe("d", tokens, float(tokens < 100 and rng.random() < 0.75))
        for tokens in _lengths(rng, 500)
    ]
    assert not any(fair)
    assert not any(constant.observe("d", 7, 1.0) for _ in range(200))


def _lengths(rng: random.Random, count: int) -> list[int]:
    return [min(100, rng.randrange(5, 130)) for _ in range(count)]


def test_a_sudden_jump_of_the_pass_rate_is_noticed_once_it_is_sure_and_learning_is_not() -> None:
    rng = random.Random(4)
    jumps = PassRateJumps()
    before = [jumps.observe("d", 0, "train", rng.random() < 0.2) for _ in range(256)]
    after = [jumps.observe("d", 0, "train", rng.random() < 0.95) for _ in range(64)]
    assert not any(before) and after[-1] and not after[9]
    learning = PassRateJumps()
    assert not any(
        learning.observe("d", 0, "train", rng.random() < 0.1 + 0.8 * n / 4000) for n in range(4000)
    )


def test_a_new_stage_or_an_evaluation_is_no_jump() -> None:
    jumps = PassRateJumps()
    assert not any(jumps.observe("d", 0, "train", False) for _ in range(300))
    assert not any(jumps.observe("d", 1, "train", True) for _ in range(300))
    assert not any(jumps.observe("d", 0, "eval", True) for _ in range(300))


def test_rules_act_by_share_after_enough_attempts() -> None:
    rules = FlagRules([AuditRule(flag="reward_path_written", share=0.25, least=8)])
    found = [rules.observe("d", f"t{n}", ("reward_path_written",) * (n % 2), ()) for n in range(10)]
    assert [n for n, each in enumerate(found) if each] == [7, 9]
    assert found[7] is not None
    assert (found[7].flagged, found[7].attempts, found[7].trajectory_ids) == (4, 8, ("t1", "t3", "t5", "t7"))
    assert rules.observe("other", "t", ("reward_path_written",), ()) is None
    rules.lift("d")
    assert rules.observe("d", "t99", ("reward_path_written",), ()) is None


def test_the_star_is_one_flag_of_an_attempt_and_no_stream_flag() -> None:
    rules = FlagRules([AuditRule(flag="*", share=0.5, least=4)])
    mixed = [rules.observe("d", f"t{n}", (f"flag{n % 4}",), ("pass_rate_jump",)) for n in range(12)]
    assert not any(mixed), "no single flag is on half of them"
    named = FlagRules([AuditRule(flag="pass_rate_jump", share=0.5, least=4)])
    assert any(named.observe("d", f"t{n}", (), ("pass_rate_jump",)) for n in range(4))


def test_no_rule_holds_nothing() -> None:
    rules = FlagRules([])
    assert not any(rules.observe("d", f"t{n}", ("anything",), ()) for n in range(300))
