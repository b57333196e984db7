"""The TLS certificates and node keys of a Flower deployment.

One certificate authority for the deployment, one certificate for the SuperLink, one key for every
SuperNode. For the nodes Flower accepts NIST elliptic curves in OpenSSH form.
"""

import datetime
import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dapfl.errors import KeyFileError

_CURVE = ec.SECP384R1
_YEARS = 5


@dataclass(frozen=True, repr=False)
class KeyPair:
    """A private key and what goes with it (a certificate or a public key), both as file contents."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return "KeyPair(private=<hidden>)"


def make_authority(name: str) -> KeyPair:
    """A certificate authority that signs for one deployment only."""
    key = ec.generate_private_key(_CURVE())
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return KeyPair(_pem(key), certificate.public_bytes(Encoding.PEM))


def make_server_certificate(authority: KeyPair, hosts: Iterable[str]) -> KeyPair:
    """The certificate of a SuperLink that nodes reach under these names and addresses."""
    names = _subject_names(hosts)
    issuer_key = load_pem_private_key(authority.private, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.public)
    key = ec.generate_private_key(_CURVE())
    certificate = (
        _builder(_name("Dap-FL SuperLink"), issuer.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .sign(issuer_key, hashes.SHA384())
    )
    return KeyPair(_pem(key), certificate.public_bytes(Encoding.PEM))


def make_node_key(comment: str) -> KeyPair:
    """A SuperNode's key pair, as `ssh-keygen -t ecdsa -b 384` makes it."""
    key = ec.generate_private_key(_CURVE())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private, public + b" " + comment.encode() + b"\n")


def node_fingerprint(public_key: bytes) -> bytes:
    """A node's public key as Flower's SuperLink lists it: the DER form, base64 in PEM.

    `public_key` is the content of the .pub file.
    """
    try:
        key = load_ssh_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(
            "A node's public key is not in OpenSSH form. Make the folders of the deployment again."
        ) from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _subject_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """The names in the certificate. Loopback is always among them, since `dapfl run` uses it."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"]):
        address = None
        with suppress(ValueError):
            address = ipaddress.ip_address(host)
        names.append(x509.IPAddress(address) if address else x509.DNSName(host))
    return names


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # devices' clocks differ
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
