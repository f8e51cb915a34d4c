"""TLS without sockets: a client and a server that hand each other their bytes."""

import contextlib
import datetime as dt
import ssl
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization

from delayd.net.tls import CertificateFiles


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self.path = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def files(
        self,
        name: str = "localhost",
        *,
        not_before: dt.datetime | None = None,
        not_after: dt.datetime | None = None,
    ) -> CertificateFiles:
        """Write a new certificate and its key over those of before."""
        leaf = self._ca.issue_cert(name, not_before=not_before, not_after=not_after)
        files = CertificateFiles(str(self.directory / "cert.pem"), str(self.directory / "key.pem"))
        leaf.private_key_pem.write_to_path(str(files.key))
        Path(files.certificate).write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        return files

    def client(self, certificate: str = "") -> ssl.SSLContext:
        """The context of a client that trusts us, with a certificate of that name if any."""
        context = ssl.create_default_context(cafile=self.path)
        if certificate:
            self._ca.issue_cert(certificate).configure_cert(context)
        return context


def encrypted(path: str) -> None:
    """Put a passphrase on the key."""
    key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    Path(path).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"canary"),
        )
    )


class Met(NamedTuple):
    """What each end knows of the other."""

    client: ssl.SSLObject
    server: ssl.SSLObject

    @property
    def server_name(self) -> str:
        """The name in the certificate that the client was shown."""
        certificate = self.client.getpeercert()
        assert certificate is not None
        return str(certificate["subjectAltName"][0][1])


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> Met:
    """Let them meet. Raises `ssl.SSLError` of whichever end does not want to."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = Met(
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(5):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    # With TLS 1.3 a client is done before the server has looked at its certificate.
    ends.server.write(b"x")
    assert ends.client.read(1) == b"x"
    return ends
