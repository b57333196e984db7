"""Key files: what was written comes back, and anything else is a KeyFileError that says why."""

import contextlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapfl.crypto.keys import keyfile, passphrase
from dapfl.crypto.keys.threshold_keys import KeyShare, generate_committee
from dapfl.crypto.paillier import PrivateKey, PublicKey
from dapfl.errors import KeyFileError

PROPERTY = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passphrase, "_SCRYPT_COST", 16)


def public(text: str) -> PublicKey:
    return keyfile.public_from_text(text, allow_insecure_small_keys=True)


def private(text: str, passphrase: str | None = None) -> PrivateKey:
    return keyfile.private_from_text(text, passphrase, allow_insecure_small_keys=True)


def share_of(text: str, passphrase: str | None = None) -> KeyShare:
    return keyfile.share_from_text(text, passphrase, allow_insecure_small_keys=True)


MEMBERS = generate_committee(256, allow_insecure_small_keys=True)


def test_keys_come_back_as_they_were(insecure_key: PrivateKey, other_insecure_key: PrivateKey) -> None:
    for key in (insecure_key, other_insecure_key):
        assert public(keyfile.to_text(key.public_key)) == key.public_key
        assert private(keyfile.to_text(key)) == key
        assert private(keyfile.to_text(key, "correct horse"), "correct horse") == key
        data = keyfile.to_bytes(key)
        assert keyfile.private_from_bytes(data, allow_insecure_small_keys=True) == key
        data = keyfile.to_bytes(key.public_key)
        assert keyfile.public_from_bytes(data, allow_insecure_small_keys=True) == key.public_key


def test_files_come_back_and_private_ones_are_private(tmp_path: Path, key: PrivateKey) -> None:
    keyfile.save(tmp_path / "key", key, "pass")
    keyfile.save(tmp_path / "key.pub", key.public_key)
    assert keyfile.load_private(tmp_path / "key", "pass", engine="gmp") == key
    assert keyfile.load_public(tmp_path / "key.pub") == key.public_key
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key.pub").stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.pub"]


def test_an_existing_file_is_replaced_whole(tmp_path: Path, insecure_key: PrivateKey) -> None:
    path = tmp_path / "key"
    path.write_text("x" * 100000)
    path.chmod(0o666)
    keyfile.save(path, insecure_key)
    assert private(path.read_text()) == insecure_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_shares_and_committees_come_back_as_they_were(tmp_path: Path) -> None:
    share = MEMBERS[1]
    keyfile.save(tmp_path / "share", share, "pass")
    keyfile.save(tmp_path / "committee", share.committee)
    assert keyfile.load_share(tmp_path / "share", "pass", allow_insecure_small_keys=True) == share
    assert keyfile.load_committee(tmp_path / "committee", allow_insecure_small_keys=True) == share.committee
    assert share_of(keyfile.to_text(share)) == share
    assert stat.S_IMODE((tmp_path / "share").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "committee").stat().st_mode) == 0o644
    assert f"{share.secret:x}" not in (tmp_path / "share").read_text() + (tmp_path / "committee").read_text()


def test_small_shares_are_refused_unless_asked_for() -> None:
    with pytest.raises(KeyFileError, match="not secure"):
        keyfile.share_from_text(keyfile.to_text(MEMBERS[0]))
    with pytest.raises(KeyFileError, match="not secure"):
        keyfile.committee_from_text(keyfile.to_text(MEMBERS[0].committee))


def test_a_share_that_is_not_this_member_s_is_noticed() -> None:
    """Two shares mixed up, or one of another dealing of the same key."""
    mine, other = (json.loads(keyfile.to_text(share)) for share in MEMBERS[:2])
    for name in ("member", "secret"):
        with pytest.raises(KeyFileError, match="does not fit"):
            share_of(json.dumps(mine | {name: other[name]}))
    again = json.loads(keyfile.to_text(generate_committee(256, allow_insecure_small_keys=True)[0]))
    for name in ("n", "fingerprint", "v", "verification_keys", "secret"):
        with pytest.raises(KeyFileError):
            share_of(json.dumps(mine | {name: again[name]}))


def test_damaged_shares_are_noticed() -> None:
    whole = json.loads(keyfile.to_text(MEMBERS[0]))
    damage: dict[str, list[Any]] = {
        "member": [0, 6, -1, "1", 1.0, True, None],
        "threshold": [0, 6, "3", None, False],
        "secret": ["", "0", "xyz", 5, None, "f" * 5000],
        "v": ["0", "1", None, [], "f" * 5000],
        "verification_keys": [None, [], "ab", [1], whole["verification_keys"] * 10, [["a"]]],
    }
    for name, values in damage.items():
        for value in values:
            with pytest.raises(KeyFileError):
                share_of(json.dumps(whole | {name: value}))
        with pytest.raises(KeyFileError):
            share_of(json.dumps({key: value for key, value in whole.items() if key != name}))


def test_a_locked_key_shows_nothing(insecure_key: PrivateKey) -> None:
    text = keyfile.to_text(insecure_key, "secret")
    assert f"{insecure_key.p:x}" not in text and f"{insecure_key.q:x}" not in text
    with pytest.raises(KeyFileError, match="under a passphrase"):
        private(text)
    with pytest.raises(KeyFileError, match="passphrase is wrong"):
        private(text, "Secret")
    with pytest.raises(KeyFileError, match="not under a passphrase"):
        private(keyfile.to_text(insecure_key), "secret")
    with pytest.raises(KeyFileError, match="no passphrase"):
        keyfile.to_text(insecure_key.public_key, "secret")


def test_small_keys_are_refused_unless_asked_for(insecure_key: PrivateKey) -> None:
    with pytest.raises(KeyFileError, match="not secure"):
        keyfile.public_from_text(keyfile.to_text(insecure_key.public_key))
    with pytest.raises(KeyFileError, match="not secure"):
        keyfile.private_from_text(keyfile.to_text(insecure_key))


def test_the_other_kind_of_key_is_named(insecure_key: PrivateKey) -> None:
    with pytest.raises(KeyFileError, match="dapfl-private-key; a dapfl-public-key is needed"):
        public(keyfile.to_text(insecure_key))
    with pytest.raises(KeyFileError, match="dapfl-public-key; a dapfl-private-key is needed"):
        private(keyfile.to_text(insecure_key.public_key))
    with pytest.raises(KeyFileError, match="dapfl-committee; a dapfl-key-share is needed"):
        share_of(keyfile.to_text(MEMBERS[0].committee))
    with pytest.raises(KeyFileError, match="dapfl-key-share; a dapfl-private-key is needed"):
        private(keyfile.to_text(MEMBERS[0]))


def test_a_truncated_file_is_named(insecure_key: PrivateKey) -> None:
    text = keyfile.to_text(insecure_key)
    for length in range(0, len(text) - 2, 37):
        with pytest.raises(KeyFileError, match="not a key"):
            private(text[:length])


def test_keys_put_together_from_two_are_noticed(
    insecure_key: PrivateKey, other_insecure_key: PrivateKey
) -> None:
    mine = json.loads(keyfile.to_text(insecure_key))
    other = json.loads(keyfile.to_text(other_insecure_key))
    for name in ("p", "q", "g", "fingerprint"):
        with pytest.raises(KeyFileError):
            private(json.dumps(mine | {name: other[name]}))
    mine, other = (json.loads(keyfile.to_text(k.public_key)) for k in (insecure_key, other_insecure_key))
    for name in ("n", "fingerprint"):
        with pytest.raises(KeyFileError):
            public(json.dumps(mine | {name: other[name]}))


def test_damaged_values_are_noticed(insecure_key: PrivateKey) -> None:
    whole = json.loads(keyfile.to_text(insecure_key))
    locked = json.loads(keyfile.to_text(insecure_key, "pass"))
    damage: dict[str, list[Any]] = {
        "version": [0, 2, "1", None],
        "format": ["dapfl", None, 1],
        "p": ["", "xyz", 7, None, "-3", "0", "f" * 5000, "1" * 1024],
        "g": ["", "n+2", 0, None, "0", "1"],
        "randomness": ["none", None, 3],
    }
    for name, values in damage.items():
        for value in values:
            with pytest.raises(KeyFileError):
                private(json.dumps(whole | {name: value}))
    locked_damage: dict[str, list[Any]] = {
        "scrypt": [0, 15, -16, 2**40, "16", None],
        "salt": ["", "00", "zz", None, 5],
        "nonce": ["", "00", None],
        "locked": ["", "00" * 50, None],
        "fingerprint": ["00", None, 3],
    }
    for name, values in locked_damage.items():
        for value in values:
            with pytest.raises(KeyFileError):
                private(json.dumps(locked | {name: value}), "pass")


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path, insecure_key: PrivateKey) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b"{" * (2**20 + 1))
    for name in ("absent", "binary", "huge", "."):
        for load in (keyfile.load_public, keyfile.load_private):
            with pytest.raises(KeyFileError, match=str(tmp_path)):
                load(tmp_path / name)
    with pytest.raises(KeyFileError, match="cannot be written"):
        keyfile.save(tmp_path / "no" / "such" / "directory", insecure_key)


@PROPERTY
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_arbitrary_bytes_give_a_key_file_error(data: bytes) -> None:
    for read in (keyfile.public_from_bytes, keyfile.private_from_bytes):
        with pytest.raises(KeyFileError):
            read(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=5,
)


@PROPERTY
@given(
    st.dictionaries(
        st.sampled_from(["p", "q", "n", "g", "randomness", "fingerprint", "locked", "salt"]), json_values
    )
)
def test_arbitrary_fields_give_a_key_file_error(insecure_key: PrivateKey, fields: dict[str, Any]) -> None:
    for key, read in ((insecure_key.public_key, public), (insecure_key, private)):
        original = json.loads(keyfile.to_text(key))
        changed = {name: value for name, value in fields.items() if name != "locked" or key is insecure_key}
        if (
            all(original.get(name) == value or name not in original for name, value in changed.items())
            and "locked" not in changed
        ):
            assert read(json.dumps(original | changed)) == key
        else:
            with pytest.raises(KeyFileError):
                read(json.dumps(original | changed))


@PROPERTY
@given(st.integers(0, 10**6), st.integers(0, 127))
def test_any_changed_character_is_noticed_or_harmless(
    insecure_key: PrivateKey, position: int, code: int
) -> None:
    text = keyfile.to_text(insecure_key)
    position %= len(text)
    changed = text[:position] + chr(code) + text[position + 1 :]
    with contextlib.suppress(KeyFileError):
        assert private(changed) == insecure_key
