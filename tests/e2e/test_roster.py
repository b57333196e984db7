"""What a roster is good for: who was removed holds nothing of use, and only the KDC decides who is in."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from dapfl.errors import KeyFileError
from dapfl.federation.keys.bundles import ClientBundle, bundle_path, load_bundle
from dapfl.federation.keys.kdc import generate_more
from dapfl.federation.keys.roster import Roster, SignedRoster
from dapfl.federation.keys.updates import Enrolment
from dapfl.federation.messages import (
    Delivery,
    Membership,
    Signed,
    decode_delivery,
    decode_server_body,
    encode,
)
from dapfl.federation.protection.paillier import PaillierServerSuite
from dapfl.federation.run_keys import load_server_keys
from dapfl.federation.transport import EVERYONE
from tests.e2e.deployed import DeployedFederation, statuses


def bundle_in(folder: Path, client: int) -> ClientBundle:
    bundle = load_bundle(bundle_path(folder, client), allow_insecure_small_keys=True)
    assert isinstance(bundle, ClientBundle)
    return bundle


def newest(federation: DeployedFederation) -> Enrolment:
    rosters = load_server_keys(federation.config, federation.server).rosters
    assert rosters is not None
    return rosters.at(rosters.newest)


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeployedFederation:
    """Five clients have played, then client 5 was removed, and the others have gone on without it."""
    federation = DeployedFederation(tmp_path, monkeypatch, 4, "--setting", "small", "--decryption", "shared")
    federation.begin(federation.run, until=1)
    federation.deploy("remove", 5)
    federation.go_on()
    assert federation.records()[-1].cohort == (1, 2, 3, 4)
    return federation


def test_the_keys_of_a_removed_client_are_useless(federation: DeployedFederation) -> None:
    removed, enrolment = bundle_in(federation.fleet.folders[5], 5), newest(federation)
    assert removed.sk_cs_enc is not None and removed.individual_key is not None
    assert removed.pk_kdc_sign is not None and enrolment.roster is not None
    # It decrypts nothing any more: aggregates are under another key,
    assert removed.sk_cs_enc.public_key != enrolment.bundle.pk_cs_enc
    # which it does not find in the roster, whichever client it pretends to be,
    signed = SignedRoster.from_bytes(enrolment.roster)
    roster = signed.verified(removed.pk_kdc_sign, removed.federation)
    for client in range(1, 6):
        with pytest.raises(KeyFileError, match="no keys for this device"):
            roster.opened(client, removed.individual_key)
    # and CS neither opens nor verifies what it sends.
    assert 5 not in enrolment.bundle.sk_enc and 5 not in enrolment.bundle.pk_sign


def test_a_device_takes_nothing_under_an_old_roster(
    federation: DeployedFederation, caplog: pytest.LogCaptureFixture
) -> None:
    """The attack: CS calls a client as if the removed one were still in, and sends it the roster before."""
    first = next(message for client, message in federation.fleet.sent if client == 1)
    with caplog.at_level(logging.INFO, "dapfl.client"):
        federation.fleet.device(federation.fleet.folders[1]).answer(first, 0.01)
    assert "old-roster" in caplog.text


def test_a_device_takes_a_roster_from_the_kdc_only(
    federation: DeployedFederation, caplog: pytest.LogCaptureFixture
) -> None:
    """The attack: CS signs a roster with a client of its own, and calls under it."""
    keys = load_server_keys(federation.config, federation.server).server
    assert keys is not None
    (own,) = generate_more(1, federation.config.crypto)
    roster = Roster(keys.federation, 1, {}).with_client(9, own.public_key)
    last = [message for client, message in federation.fleet.sent if client == 1][-1]
    parts = decode_delivery(last, len(last)).parts
    context = decode_server_body(parts[-1].body).context
    body = encode(Membership(context, SignedRoster.sign(roster, own).to_bytes()))
    assert context.recipient in (1, EVERYONE)
    signature = PaillierServerSuite.sign(_Signer(keys), body)  # type: ignore[arg-type]
    forged = encode(Delivery(1, (Signed(body, signature), *parts)))
    with caplog.at_level(logging.INFO, "dapfl.client"):
        federation.fleet.device(federation.fleet.folders[1]).answer(forged, 0.01)
    assert "bad-roster" in caplog.text and "not signed by the KDC" in caplog.text


class _Signer:
    def __init__(self, keys: object) -> None:
        self._keys = keys


def test_a_device_that_has_forgotten_the_roster_gets_it_again(federation: DeployedFederation) -> None:
    """Its state was lost: it comes with the keys of its folder, and contributes nothing under them."""
    shutil.rmtree(federation.fleet.folders[2] / "state")
    (federation.fleet.folders[2] / "state").mkdir()
    federation.fleet.close()
    federation.go_on(rounds=7)
    assert [statuses(record)[2] for record in federation.records()[4:]] == [
        "failed:unknown-roster",
        "accepted",
        "accepted",
    ]
    np.testing.assert_array_equal(federation.model(), federation.reference())


def test_a_committee_gets_new_shares_with_every_roster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = DeployedFederation(tmp_path, monkeypatch, 2, "--decryption", "committee")
    federation.begin(federation.run, until=1)
    lost, old = bundle_in(federation.fleet.folders[3], 3), newest(federation)
    federation.deploy("remove", 2)
    federation.fleet.folders[3] = federation.deploy("replace", 3)
    federation.fleet.folders[6] = federation.deploy("add")
    federation.go_on(rounds=3)
    new = newest(federation)
    assert [record.cohort for record in federation.records()] == [(1, 2, 3, 4, 5), *[(1, 3, 4, 5, 6)] * 2]
    assert new.bundle.committee is not None and old.bundle.committee is not None
    assert new.bundle.committee.members == (1, 3, 4, 5, 6)
    assert set(federation.records()[-1].decrypted_by) < {1, 3, 4, 5, 6}
    # The share that was lost with the device is one of a key under which nothing is encrypted any more.
    assert lost.share is not None
    assert lost.share.committee.public_key == old.bundle.pk_cs_enc != new.bundle.pk_cs_enc
    assert old.bundle.committee.group_key != new.bundle.committee.group_key
    np.testing.assert_array_equal(federation.model(), federation.reference())
