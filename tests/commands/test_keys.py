import pytest

from dapfl.cli import main
from dapfl.federation.keys.bundles import load_bundles


def generate(folder, *flags: str) -> int:
    return main(["keys", "generate", "--clients", "2", "--out", str(folder), "--key-bits", "512", *flags])


def test_generate_writes_a_bundle_for_everyone(tmp_path, capfd):
    assert generate(tmp_path / "keys", "--allow-insecure-small-keys") == 0
    out, err = capfd.readouterr()
    assert "keys of 512 bits for the server and 2 clients" in out
    assert "Keys: 6/6" in err
    server, clients = load_bundles(tmp_path / "keys", allow_insecure_small_keys=True)
    assert list(clients) == [1, 2]
    assert server.federation.hex() in out


def test_small_keys_are_refused_unless_they_are_called_insecure(tmp_path, capfd):
    assert generate(tmp_path / "keys") == 2
    _, err = capfd.readouterr()
    assert "insecure" in err
    assert not (tmp_path / "keys").exists()


def test_existing_keys_are_never_replaced(tmp_path, capfd):
    generate(tmp_path / "keys", "--allow-insecure-small-keys")
    before = {file.name: file.read_bytes() for file in (tmp_path / "keys").iterdir()}
    assert generate(tmp_path / "keys", "--allow-insecure-small-keys") == 2
    _, err = capfd.readouterr()
    assert "choose another --out" in err
    assert {file.name: file.read_bytes() for file in (tmp_path / "keys").iterdir()} == before


@pytest.mark.parametrize("name", ["server.keys", "client-002.keys"])
def test_show_tells_what_a_bundle_holds_and_no_secret(tmp_path, capfd, name):
    generate(tmp_path, "--allow-insecure-small-keys", "--decryption", "shared", "--randomness", "full")
    capfd.readouterr()
    assert main(["keys", "show", str(tmp_path / name)]) == 0
    out, _ = capfd.readouterr()
    server, clients = load_bundles(tmp_path, allow_insecure_small_keys=True)
    for key in (server.sk_cs_sign, server.sk_enc[2], clients[2].sk_cs_enc, clients[2].sk_i_sign):
        for secret in (key.p, key.q):
            assert str(secret) not in out
            assert f"{secret:x}" not in out
    assert "NOT SECURE" in out
    names = [line.split()[0] for line in out.splitlines()[2:]]
    if name == "server.keys":
        assert names == ["PK_CS^Enc", "SK_CS^Sign", "SK_1^Enc", "SK_2^Enc", "PK_1^Sign", "PK_2^Sign"]
    else:
        assert names == ["SK_CS^Enc", "PK_2^Enc", "SK_2^Sign", "PK_CS^Sign", "PK_1^Sign", "PK_2^Sign"]


def test_show_tells_who_is_on_the_committee_and_no_share(tmp_path, capfd):
    generate(tmp_path, "--allow-insecure-small-keys")
    capfd.readouterr()
    assert main(["keys", "show", str(tmp_path / "client-002.keys")]) == 0
    out, _ = capfd.readouterr()
    _, clients = load_bundles(tmp_path, allow_insecure_small_keys=True)
    assert clients[2].share is not None and clients[2].sk_cs_enc is None
    assert str(clients[2].share.secret) not in out and f"{clients[2].share.secret:x}" not in out
    assert "share of SK_CS^Enc" in out and "decrypts together with 1 other member" in out


def test_show_names_what_is_no_bundle(tmp_path, capfd):
    (tmp_path / "file").write_text("junk")
    assert main(["keys", "show", str(tmp_path / "file")]) == 2
    assert "not a key bundle" in capfd.readouterr().err
    assert main(["keys", "show", str(tmp_path / "nothing")]) == 2
    assert "cannot be read" in capfd.readouterr().err
