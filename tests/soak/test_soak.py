"""The short form of scripts/soak."""

import pytest

from tests.federation.small import Small
from tests.soak.faults import FaultTally, run_with_faults
from tests.soak.hostile import Tally, attack
from tests.soak.scenes import SCENES
from tests.soak.secrets import forms, leaks, private_values


@pytest.mark.parametrize("number", range(len(SCENES)), ids=["-".join(each) for each in SCENES])
def test_hostile_messages_get_named_refusals_only(number):
    tally = Tally()
    attack(tally, number, 100)
    assert tally.problems == []
    assert tally.messages == 100 and len(tally.outcomes) > 5


@pytest.mark.parametrize("one_exchange_per_round", [False, True])
def test_faults_lose_no_round_and_change_no_bit(one_exchange_per_round):
    tally = FaultTally()
    for seed in range(3):
        run_with_faults(tally, seed, one_exchange_per_round=one_exchange_per_round)
    assert tally.problems == []
    assert (tally.runs, tally.rounds, tally.lost_rounds) == (3, 12, 0)


@pytest.mark.parametrize("decryption", ["shared", "committee"])
def test_no_secret_is_found_outside(decryption):
    assert leaks(decryption) == []


def test_the_search_would_find_a_secret():
    small = Small(clients=6)
    assert small.keys is not None
    bait = forms(small.keys[0].sk_cs_sign.p)[1]
    assert leaks(bait=bait) == ["p of SK_CS^Sign"]
    assert len(private_values(small)) == 2 * (1 + 6 + 6 + 1)
