"""Certificates for tests: a CA of our own, what it signs, and what a stranger signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START, END = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """A CA in a directory. certificate: its own file."""

    def __init__(self, place: Path, name: str = "authority") -> None:
        self.place = place
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and lists of revoked ones
        builder = _builder(self._name, self._name, self._key, self._key).add_extension(constraints, critical=True)
        made = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.certificate = place / f"{name}.pem"
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str) -> tuple[Path, Path]:
        """Make a certificate for 127.0.0.1 and its key; return their files."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = _builder(_named(name), self._name, key, self._key).add_extension(hosts, critical=False).sign(self._key, hashes.SHA256())
        certificate, private = self.place / f"{name}.pem", self.place / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        encrypted = key.private_bytes(serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"password"))
        private.with_suffix(".encrypted").write_bytes(encrypted)
        return certificate, private

    def client_context(self, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this CA only."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context


@dataclass(frozen=True)
class Files:
    """The files of a server, and the CA that signed them."""

    authority: Authority
    certificate: Path
    key: Path


def server_files(place: Path) -> Files:
    """Make a CA and a server's certificate."""
    authority = Authority(place)
    return Files(authority, *authority.sign("server"))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """With the identifiers of both keys, which clients of Python 3.13 and later ask for."""
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), START, END)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
    )
