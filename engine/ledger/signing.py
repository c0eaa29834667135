"""Signing keys of a ledger.

A plain digest of exact counts would confirm guesses of the counts, so digests are keyed; neither
key nor digest is part of any release. The key file is created at first use. If it is lost, records
can no longer be recognised.
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
from engine.ledger.hash_chain import sync_folder

KEY_FORMAT = "ledger-key/1"


def key_file(ledger: Path) -> Path:
    """Return the path of the key file of a ledger.

    >>> key_file(Path("budget.ledger")).name
    'budget.ledger.key'
    """
    return ledger.with_name(ledger.name + ".key")


def secret(ledger: Path, purpose: str) -> bytes:
    """Return 32 secret bytes of a ledger, different for every purpose.

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
            raise ValueError("another format")
    except OSError as error:
        raise LedgerError(
            f"The key file {file} cannot be read or created: {error.strerror}. Nothing was spent."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise LedgerError(
            f"The key file {file} is damaged. Restore it from a copy. Nothing was spent."
        ) from None
    # a separate key per purpose, so that digests never help to forge a signature
    return hmac.digest(seed, purpose.encode(), hashlib.sha256)


def sign_with(seed: bytes, content: bytes) -> tuple[str, str]:
    """Return public key and Ed25519 signature, in hexadecimal."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.public_key().public_bytes_raw().hex(), key.sign(content).hex()


def good_signature(public_key: str, signature: str, content: bytes) -> bool:
    """Whether a signature of a content is valid under a public key; both in hexadecimal.

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
    """Create the key file atomically, readable by its owner only; the first of two creations wins."""
    content = json.dumps({"format": KEY_FORMAT, "seed": secrets.token_hex(32)})
    # two concurrent creations both read the first key; it is synced before it has its name, because
    # a truncated key would make every digest wrong
    with suppress(FileExistsError), atomic_file(file, overwrite=False) as new:
        new.write(content.encode())
    sync_folder(file.parent)
