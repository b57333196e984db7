"""A month of a federation in minutes: devices are lost, replaced, added and removed; the server restarts; the
run is extended twice; the same keys serve a second run. Nobody starts over.
"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from dapfl import cli
from dapfl.errors import KeyFileError
from dapfl.federation.run_keys import load_server_keys
from dapfl.runs.results import read_run
from dapfl.runs.session import resume
from tests.e2e.deployed import DeployedFederation, statuses


def the_month(path: Path, monkeypatch: pytest.MonkeyPatch, week: int) -> DeployedFederation:
    """`week` rounds pass between two events. (A round is recorded after the exchange of the next.)"""
    month = DeployedFederation(path, monkeypatch, rounds=3 * week)
    month.begin(month.run, until=week)  # the first week: all five; then the server is restarted
    assert all(record.cohort == (1, 2, 3, 4, 5) for record in month.records())

    month.fleet.away = {3}  # the second week: client 3 is lost for good
    month.go_on(until=2 * week)
    assert statuses(month.records()[-1])[3] == "failed:offline"

    stolen = month.fleet.folders[3]
    month.fleet.folders[3], month.fleet.away = month.deploy("replace", 3), set()
    month.go_on()  # the third week, with a new device
    assert month.records()[-1].cohort == (1, 2, 3, 4, 5)

    month.fleet.folders[6] = month.deploy("add")
    month.go_on(rounds=4 * week)  # extended; one more hospital
    assert month.records()[-1].cohort == (1, 2, 3, 4, 5, 6)

    kept, month.fleet.folders[3] = month.fleet.folders[3], stolen  # the lost device turns up again
    with resume(month.run, rounds=5 * week + 1) as session:
        for record in session:
            if record.round + 1 == 4 * week + 1:
                month.deploy("remove", 5)  # while the run goes on
                month.fleet.folders[3] = kept
    found = statuses(month.records()[4 * week])
    assert found[3] == "rejected:bad-envelope"  # its keys are worthless
    assert 5 not in statuses(month.records()[-1])  # it is not even called
    assert month.records()[-1].cohort == (1, 2, 3, 4, 6)
    assert [month.records()[at].roster for at in (0, 2 * week + 1, 3 * week, -1)] == [0, 1, 2, 3]
    return month


def check(month: DeployedFederation) -> None:
    records = month.records()
    assert [record.round for record in records] == list(range(len(records)))
    np.testing.assert_array_equal(month.model(), month.reference())
    history = [event.what for event in read_run(month.run).manifest.history]
    assert sum("extended" in what for what in history) == 2

    # The same keys serve a second run, from the beginning, for everybody.
    month.run = month.run.with_name("second")
    month.begin(month.run)
    assert {record.cohort for record in month.records()} == {(1, 2, 3, 4, 6)}
    np.testing.assert_array_equal(month.model(), month.reference())
    uses = json.loads((month.server / "server.keys.runs").read_text())
    assert len(uses) == 2


def test_a_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(the_month(tmp_path, monkeypatch, week=2))


@pytest.mark.long
def test_a_long_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(the_month(tmp_path, monkeypatch, week=7))


def test_a_server_enrols_nobody_without_the_kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: CS, with its own keys, makes a roster with a client of its own."""
    from dapfl.federation.keys.kdc import generate_more
    from dapfl.federation.keys.roster import Roster, SignedRoster
    from dapfl.federation.keys.updates import ServerPart, ServerUpdate

    month = DeployedFederation(tmp_path, monkeypatch, rounds=1)
    keys = load_server_keys(month.config, month.server)
    assert keys.server is not None and keys.rosters is not None
    (forged,) = generate_more(1, month.config.crypto)
    part = ServerPart(decryption={}, keys={9: "a key of its own"})
    roster = Roster(keys.server.federation, 0, {}, server=part.digest).with_client(9, forged.public_key)
    for signer in (keys.server.sk_cs_sign, forged):
        signed = SignedRoster.sign(roster, signer).to_bytes()
        with pytest.raises(KeyFileError, match="not signed by the KDC"):
            keys.rosters.add(ServerUpdate(roster=signed, server=part))


def test_updates_are_applied_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    month = DeployedFederation(tmp_path, monkeypatch, 1, "--decryption", "shared")
    for _ in range(2):
        assert cli.main(["deploy", "remove", str(month.deployment), str(5 - _)]) == 0
    first, second = (month.deployment / f"update-00{n}" / "server.update" for n in (1, 2))
    assert cli.main(["deploy", "update", str(month.server), str(second)]) == 2
    assert "in their order" in capsys.readouterr().err
    for update in (first, second):
        assert cli.main(["deploy", "update", str(month.server), str(update)]) == 0
    assert cli.main(["deploy", "update", str(month.server), str(first)]) == 2
    assert not (month.server / "nodes" / "client-005.pub").exists()
    assert cli.main(["deploy", "remove", str(month.deployment), "3"]) == 2
    assert "2 clients would be left, and a round needs 3" in capsys.readouterr().err
    assert cli.main(["deploy", "remove", str(month.deployment), "9"]) == 2
    assert "no client 9" in capsys.readouterr().err
