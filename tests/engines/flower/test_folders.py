"""Certificates, node keys and the folders that hold them."""

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from dapfl.config import RunConfig
from dapfl.engines.flower.deployment import certificates, folders
from dapfl.errors import KeyFileError, RunDirectoryError
from dapfl.runs.settings import resolve


def handshake(folder: folders.ServerFolder, authority: Path, name: str) -> None:
    """A TLS handshake in memory between the SuperLink's certificate and a client that trusts `authority`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder.certificate, folder.key)
    client = ssl.create_default_context(cafile=str(authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> folders.Deployment:
    return folders.create(tmp_path_factory.mktemp("deployment"), [1, 2, 12], ["fl.example.org", "10.1.2.3"])


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "fl.example.org", "10.1.2.3"])
def test_the_superlink_is_trusted_under_its_names(deployment: folders.Deployment, name: str) -> None:
    handshake(deployment.server, deployment.client(2).authority, name)


def test_the_superlink_is_not_trusted_under_another_name(deployment: folders.Deployment) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(deployment.server, deployment.client(2).authority, "evil.example.org")


def test_another_deployments_certificate_is_not_trusted(
    deployment: folders.Deployment, tmp_path: Path
) -> None:
    other = folders.create(tmp_path, [1], [])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other.server, deployment.client(1).authority, "localhost")


def test_the_servers_certificate_cannot_sign_others(deployment: folders.Deployment) -> None:
    certificate = x509.load_pem_x509_certificate(deployment.server.certificate.read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_node_keys_are_the_kind_that_flower_takes(deployment: folders.Deployment) -> None:
    private = load_ssh_private_key(deployment.client(1).node_key.read_bytes(), None)
    public = load_ssh_public_key(deployment.client(1).node_public_key.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp384r1"
    assert private.public_key() == public


def test_the_server_knows_whose_key_is_whose(deployment: folders.Deployment) -> None:
    keys = deployment.server.node_keys()
    assert sorted(keys.values()) == [1, 2, 12]
    own = certificates.node_fingerprint(deployment.client(12).node_public_key.read_bytes())
    assert keys[own] == 12


def test_private_files_are_for_their_owner_only(deployment: folders.Deployment) -> None:
    server, client = deployment.server, deployment.client(1)
    private = [
        deployment.path / "authority.key",
        server.key,
        server.secret,
        client.node_key,
        client.node_secret,
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE(client.path.stat().st_mode) == 0o700


def test_a_client_folder_holds_no_key_of_another(deployment: folders.Deployment) -> None:
    foreign = {
        deployment.server.key.read_bytes(),
        deployment.server.secret.read_bytes(),
        (deployment.path / "authority.key").read_bytes(),
        deployment.client(2).node_key.read_bytes(),
    }
    found = {path.read_bytes() for path in deployment.client(1).path.rglob("*") if path.is_file()}
    assert not foreign & found


def test_a_folder_without_node_keys_is_not_the_servers(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not the server's folder"):
        folders.ServerFolder(tmp_path).node_keys()


def test_a_key_in_another_form_is_named_as_such() -> None:
    with pytest.raises(KeyFileError, match="OpenSSH"):
        certificates.node_fingerprint(b"not a key")


def test_key_pairs_do_not_show_themselves() -> None:
    pair = certificates.make_node_key("client-001")
    assert pair.private.decode() not in repr(pair)


@pytest.mark.parametrize("name", ["dap-fl", "dap-fl-paper", "large", "dqn-small"])
def test_a_client_reads_the_policy_that_was_written_for_it(name: str, tmp_path: Path) -> None:
    run = RunConfig(setting=name, policy={"space": {"batch_size": {"pinned": "none"}}})
    settings = folders.ClientSettings(client=1, run=run, policy=resolve(run).policy)
    folder = folders.ClientFolder(tmp_path)
    folder.write_settings(settings)
    assert folder.settings() == settings
