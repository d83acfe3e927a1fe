"""`fedkin deploy keys`: a CA, a certificate and keys to try TLS and node authentication with."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Keys:
    """Make a CA, a certificate for the superlink and a key for each site, to try TLS with. Private keys go to a folder
    beside DIR. In production, sites make their own keys."""

    folder: Path
    """The folder that `fedkin deploy init` made."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Names and addresses under which sites reach the superlink."""
    days: int = 365
    """How long the certificates are valid."""


def keys(given: Keys) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    names = sorted(path.stem for path in (given.folder / "sites").glob("*.toml"))
    if not names:
        raise ValueError(f"{given.folder / 'sites'} has no NAME.toml: run `fedkin deploy init {given.folder}` first.")
    folder, private = given.folder / "keys", private_folder(given.folder)
    for made in (folder, private):
        if made.exists():
            raise ValueError(f"{made} already exists: remove it to make new keys.")
    folder.mkdir()
    private.mkdir(mode=0o700)

    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: str, key: Any, issuer: Any, signer: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
            .not_valid_after(now + datetime.timedelta(days=given.days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )

    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    usage = {
        "digital_signature": False, "content_commitment": False, "key_encipherment": False, "data_encipherment": False,
        "key_agreement": False, "key_cert_sign": False, "crl_sign": False, "encipher_only": False,
        "decipher_only": False,
    }  # fmt: skip
    root = (
        certificate("fedkin trial CA", authority, "fedkin trial CA", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .sign(authority, hashes.SHA384())
    )
    own = (
        certificate(given.hosts[0], server, "fedkin trial CA", authority)
        .add_extension(x509.SubjectAlternativeName([_host(h, x509) for h in given.hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = serialization.PrivateFormat.PKCS8
    _write(private / "ca.key", authority.private_bytes(pem, secret, none), private=True)
    _write(folder / "ca.crt", root.public_bytes(pem))
    _write(private / "server.key", server.private_bytes(pem, secret, none), private=True)
    _write(folder / "server.crt", own.public_bytes(pem))
    for name in names:
        key = ec.generate_private_key(ec.SECP384R1())
        _write(private / name, key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, none), private=True)
        public = key.public_key()
        ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        _write(folder / f"{name}.pub", public.public_bytes(*ssh) + b"\n")
    print(
        f"{folder} holds the public part: the CA's and the superlink's certificate (for "
        f"{', '.join(given.hosts)}) and the public keys of {', '.join(names)}. {private} holds the private keys: give "
        "each site its own and nothing else. In production, each site makes its own key and sends NAME.pub."
    )


def private_folder(folder: Path) -> Path:
    """Private keys are kept beside the folder that all machines get, never in it."""
    whole = folder.resolve()
    return whole.parent / f"{whole.name}-private"


def _host(name: str, x509: Any) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    path.touch(mode=0o600 if private else 0o644)
    path.write_bytes(content)
