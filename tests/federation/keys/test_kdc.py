import json
import pickle
import stat
from pathlib import Path

import pytest

from dapfl.config import CryptoConfig
from dapfl.crypto.keys.passphrase import VARIABLE
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import KeyFileError
from dapfl.federation.keys.bundles import (
    ClientBundle,
    ServerBundle,
    bundle_path,
    load_bundle,
    load_bundles,
    save_bundle,
    save_bundles,
)
from dapfl.federation.keys.kdc import generate, keys_needed
from tests.federation.small import insecure_keys


def private_keys(bundle) -> list[PrivateKey]:
    values = [value for name in bundle.__dataclass_fields__ for value in _flat(getattr(bundle, name))]
    return [value for value in values if isinstance(value, PrivateKey)]


def public_keys(bundle) -> list[PublicKey]:
    values = [value for name in bundle.__dataclass_fields__ for value in _flat(getattr(bundle, name))]
    return [value for value in values if isinstance(value, PublicKey)]


def _flat(value):
    return list(value.values()) if isinstance(value, dict) else [value]


def test_every_role_holds_exactly_the_keys_of_figure_4():
    server, clients = insecure_keys()
    sk_cs_enc, sk_cs_sign = clients[1].sk_cs_enc, server.sk_cs_sign
    sk_enc, sk_sign = dict(server.sk_enc), {i: bundle.sk_i_sign for i, bundle in clients.items()}
    signing = [key.public_key for key in sk_sign.values()]

    assert private_keys(server) == [sk_cs_sign, *sk_enc.values()]
    assert public_keys(server) == [sk_cs_enc.public_key, *signing]
    for i, bundle in clients.items():
        assert private_keys(bundle) == [sk_cs_enc, sk_sign[i]]
        assert public_keys(bundle) == [sk_enc[i].public_key, sk_cs_sign.public_key, *signing]


def test_no_role_holds_a_key_that_it_must_not_have():
    server, clients = insecure_keys()
    assert clients[1].sk_cs_enc not in private_keys(server), "CS could read contributions"
    for i, bundle in clients.items():
        held = private_keys(bundle)
        assert server.sk_cs_sign not in held, "a client could sign aggregates"
        assert not [key for key in server.sk_enc.values() if key in held], "a client could open envelopes"
        others = [other.sk_i_sign for j, other in clients.items() if j != i]
        assert not [key for key in others if key in held], "a client could sign as another"
        assert bundle.sk_i_sign not in private_keys(server), "CS could sign as a client"


def test_all_keys_are_different():
    server, clients = insecure_keys()
    keys = [clients[1].sk_cs_enc, server.sk_cs_sign, *server.sk_enc.values()]
    keys += [bundle.sk_i_sign for bundle in clients.values()]
    assert len({key.public_key.n for key in keys}) == len(keys) == keys_needed(len(clients))


def test_files_hold_what_the_bundles_hold(tmp_path):
    server, clients = insecure_keys()
    save_bundles(tmp_path / "keys", server, clients)
    assert load_bundles(tmp_path / "keys", allow_insecure_small_keys=True) == (server, clients)
    one = load_bundle(tmp_path / "keys" / "client-003.keys", allow_insecure_small_keys=True)
    assert one == clients[3]


def test_clients_loaded_together_share_the_keys_they_all_hold(tmp_path):
    server, clients = insecure_keys()
    save_bundles(tmp_path, server, clients)
    _, loaded = load_bundles(tmp_path, allow_insecure_small_keys=True)
    assert len({id(bundle.sk_cs_enc) for bundle in loaded.values()}) == 1


def test_files_are_for_their_owner_only(tmp_path):
    server, clients = insecure_keys()
    save_bundles(tmp_path / "keys", server, clients)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for file in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.suffix == ".keys"


def test_a_clients_file_holds_no_private_key_of_others(tmp_path):
    server, clients = insecure_keys()
    save_bundle(tmp_path / "one", clients[1])
    text = (tmp_path / "one").read_text()
    for key in [server.sk_cs_sign, *server.sk_enc.values(), clients[2].sk_i_sign]:
        assert f"{key.p:x}" not in text
        assert f"{key.q:x}" not in text


def test_bundles_do_not_show_their_secrets():
    server, clients = insecure_keys()
    for bundle in (server, clients[1]):
        shown = repr(bundle)
        for key in private_keys(bundle):
            assert str(key.p) not in shown
            assert f"{key.p:x}" not in shown


def test_bundles_can_be_handed_to_another_process():
    server, clients = insecure_keys()
    assert pickle.loads(pickle.dumps(server)) == server
    assert pickle.loads(pickle.dumps(clients[2])) == clients[2]


def test_small_keys_need_an_argument_that_says_insecure(tmp_path):
    with pytest.raises(ValueError, match="insecure"):
        CryptoConfig(key_bits=512)
    server, _ = insecure_keys()
    save_bundle(tmp_path / "server.keys", server)
    with pytest.raises(KeyFileError, match="not secure"):
        load_bundle(tmp_path / "server.keys")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not complete JSON"),
        (lambda text: json.dumps({"format": "other"}), "not a key bundle"),
        (lambda text: text.replace('"version": 1,', '"version": 9,', 1), "version 9"),
        (lambda text: text.replace('"role"', '"rule"'), "damaged"),
        (lambda text: text.replace('"sk_i_sign"', '"sk_j_sign"'), "damaged"),
        (lambda text: text.replace('\\"p\\": \\"', '\\"p\\": \\"1'), "key"),
        (lambda text: "[" * 100_000, "not complete JSON"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
    _, clients = insecure_keys()
    path = bundle_path(tmp_path, 1)
    save_bundle(path, clients[1])
    path.write_text(damage(path.read_text()))
    with pytest.raises(KeyFileError, match=message) as caught:
        load_bundle(path, allow_insecure_small_keys=True)
    assert str(path) in str(caught.value)


def test_missing_and_mixed_up_files_are_named(tmp_path):
    with pytest.raises(KeyFileError, match="cannot be read"):
        load_bundle(tmp_path / "nothing")
    server, clients = insecure_keys()
    save_bundles(tmp_path, server, clients)
    save_bundle(bundle_path(tmp_path, 2), clients[1])
    with pytest.raises(KeyFileError, match="not the key bundle of client 2"):
        load_bundles(tmp_path, allow_insecure_small_keys=True)
    _, others = insecure_keys(federation=1)
    save_bundle(bundle_path(tmp_path, 2), others[2])
    with pytest.raises(KeyFileError, match="two federations"):
        load_bundles(tmp_path, allow_insecure_small_keys=True)
    save_bundle(bundle_path(tmp_path, None), clients[1])
    with pytest.raises(KeyFileError, match="not the key bundle of a server"):
        load_bundles(tmp_path, allow_insecure_small_keys=True)


@pytest.mark.processes
def test_many_keys_are_made_in_parallel_processes():
    made = []
    crypto = CryptoConfig(
        key_bits=1024, allow_insecure_small_keys=True, randomness="full", decryption="shared"
    )
    server, clients = generate(4, crypto, lambda: made.append(1))
    assert len(made) == keys_needed(4) == 10
    assert isinstance(server, ServerBundle)
    assert [bundle.client for bundle in clients.values()] == [1, 2, 3, 4]
    assert all(isinstance(bundle, ClientBundle) for bundle in clients.values())
    assert server.pk_cs_enc.randomness == "full"
    assert len({bundle.sk_i_sign.p for bundle in clients.values()}) == 4


def test_a_bundle_under_a_passphrase_shows_nothing_and_opens_with_it_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, clients = insecure_keys()
    path, word = tmp_path / "client-001.keys", tmp_path / "passphrase"
    save_bundle(path, clients[1], "correct horse")
    text = path.read_text()
    assert f"{clients[1].sk_i_sign.p:x}" not in text and server.federation.hex() not in text
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(KeyFileError, match=f"under a passphrase.*{VARIABLE}"):
        load_bundle(path, allow_insecure_small_keys=True)
    monkeypatch.setenv(VARIABLE, str(word))
    for content, words in ((None, "No such file"), ("", "empty"), ("wrong horse", "passphrase is wrong")):
        if content is not None:
            word.write_text(content)
        with pytest.raises(KeyFileError, match=words):
            load_bundle(path, allow_insecure_small_keys=True)
    word.write_text("correct horse\n")
    assert load_bundle(path, allow_insecure_small_keys=True) == clients[1]
    data = json.loads(text)
    for name in ("salt", "nonce", "locked", "scrypt"):
        for value in ("00", "", None, 2**40):
            path.write_text(json.dumps(data | {name: value}))
            with pytest.raises(KeyFileError):
                load_bundle(path, allow_insecure_small_keys=True)
