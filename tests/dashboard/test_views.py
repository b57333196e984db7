"""What the live page is told about a run."""

from pathlib import Path

import msgspec

from dapfl.dashboard.views import facts_of, palette_of, round_view
from dapfl.federation.records import ClientRecord, RoundRecord, Status
from dapfl.runs.manifest import Manifest
from tests import fake_runs


def facts(**crypto: object) -> dict[str, str]:
    crypto = {"encryption": "paillier", "key_bits": 2048, "envelope": "hybrid", **crypto}
    manifest = msgspec.convert(fake_runs.manifest(crypto=crypto), Manifest)
    return dict(facts_of(Path("run"), manifest).rows)


def test_the_page_says_who_decrypts() -> None:
    assert facts(decryption="committee")["Decryption"] == "by any 4 of 5 clients"
    assert facts(decryption="committee", committee_threshold=3)["Decryption"] == "by any 3 of 5 clients"
    assert "Decryption" not in facts(decryption="shared")
    assert "Decryption" not in facts(decryption="committee", encryption="none")


def test_the_page_knows_which_members_decrypted_a_round() -> None:
    assert round_view(RoundRecord(round=0, decrypted_by=(1, 2, 3, 5)), {}).decrypted_by == (1, 2, 3, 5)


def test_what_devices_choose_is_shown_although_they_have_no_capability() -> None:
    clients = tuple(ClientRecord(id=i, status=Status.ACCEPTED, eta=0.1, alpha=2 * i) for i in (1, 2))
    view = round_view(RoundRecord(round=0, clients=clients), {})
    assert [(each.capability, each.alpha) for each in view.choices] == [(None, 3.0)]
    assert list(palette_of({}).capabilities) == ["all"]
    known = round_view(RoundRecord(round=0, clients=clients), {1: 0.8})  # client 2 was never heard of
    assert [(each.capability, each.alpha) for each in known.choices] == [(0.8, 2.0)]
