"""Secret keys of a ledger: for signatures, and for digests of records.

Digests of exact counts are keyed, because anyone could compare a plain digest with the digest of
guessed counts. Neither secret keys nor digests are part of a release. The key file is created at first
use. If it is lost, the program cannot recognise records that it counted before, and signs with
another key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine._atomic_io import atomic_file
from engine._untrusted import parse_json
from engine.errors import LedgerError
from engine.ledger.sqlite_file import sync_folder

KEY_FORMAT = "ledger-key/1"


def key_file(ledger: Path) -> Path:
    """Return the path of the key file of a ledger.

    >>> key_file(Path("budget.ledger")).name
    'budget.ledger.key'
    """
    return ledger.with_name(ledger.name + ".key")


def secret(ledger: Path, purpose: str) -> bytes:
    """Return 32 secret bytes, derived from the key file of a ledger and a purpose.

    The key file is created if it does not exist.

    Parameters
    ----------
    purpose : text such as "signature"; each purpose has its own key.

    Raises
    ------
    LedgerError
        The key file cannot be read or created.
    """
    file = key_file(ledger)
    try:
        if not file.exists():
            _create(file)
        data = parse_json(file.read_bytes())
        if data["format"] != KEY_FORMAT or len(seed := bytes.fromhex(data["seed"])) != 32:
            raise ValueError("The key file has another format.")
    except OSError as error:
        raise LedgerError(
            f"The key file {file} cannot be read or created: {error.strerror}. Nothing was spent."
            " Make the file and its folder readable and writable."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise LedgerError(
            f"The key file {file} is damaged. Nothing was spent. Restore it from a copy."
        ) from None
    # each purpose has a separate key, so that digests never help to forge a signature
    return hmac.digest(seed, purpose.encode(), hashlib.sha256)


def sign_with(seed: bytes, content: bytes) -> tuple[str, str]:
    """Sign ``content`` with the Ed25519 key of a 32-byte seed.

    Returns
    -------
    public_key, signature : hexadecimal text.
    """
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.public_key().public_bytes_raw().hex(), key.sign(content).hex()


def key_fingerprint(public_key: str) -> str:
    """Return the fingerprint of a public key, short enough for people to compare.

    It is the first half of the SHA-256 of the key, in groups of four hexadecimal digits.

    >>> key_fingerprint("00" * 32)
    '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
    """
    digest = hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:32]
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


def good_signature(public_key: str, signature: str, content: bytes) -> bool:
    """Return whether ``signature`` is a valid Ed25519 signature of ``content``.

    Public key and signature are hexadecimal text; malformed text gives False.

    >>> public, signature = sign_with(bytes(32), b"text")
    >>> good_signature(public, signature, b"text"), good_signature(public, signature, b"another")
    (True, False)
    """
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(signature), content
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def _create(file: Path) -> None:
    """Create the key file with a random seed, readable by its owner only; keep an existing file."""
    content = json.dumps({"format": KEY_FORMAT, "seed": secrets.token_hex(32)})
    # If two programs create the file at the same time, the second one keeps the first one's file,
    # so both read the same key. `atomic_file` syncs the content before the file gets its name: a
    # power cut must not leave a truncated key.
    with suppress(FileExistsError), atomic_file(file, overwrite=False) as new:
        new.write(content.encode())
    sync_folder(file.parent)
