"""Checks the passwords of basic authentication. `server` asks it once per request.

bcrypt takes 50 to 200 ms by design, a scrape must not: what was checked once is remembered, under a keyed hash with a
key that lives only in this process, so that no password stays in memory in a form that could be used elsewhere. Wrong
passwords are remembered too, in a bounded list, and only a few checks may wait at a time: guessing costs the node one
thread at most. Never logs a name or a password.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import bcrypt

_REMEMBERED = 128
_WAITING_AT_MOST = 8
# bcrypt reads no further than this (Provos and Mazieres, 1999): a longer password is refused, not cut.
_LONGEST_PASSWORD_BYTES = 72


class BusyError(Exception):
    """Too many passwords are being checked already."""


class Credentials:
    """Remembers what was checked, for the whole life of a server; reloaded users make the old answers unreachable."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._answers: OrderedDict[bytes, bool] = OrderedDict()
        self._waiting = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bcrypt")

    async def allow(self, users: Mapping[str, str], authorization: str) -> bool:
        """Whether an Authorization header names one of the users (name -> bcrypt hash) with its password.

        Raises BusyError where too many checks wait. A name that does not exist costs as much as a wrong password, so that
        nobody learns the names by timing.
        """
        if (given := _basic(authorization)) is None:
            return False
        name, password = given
        known = name in users
        hashed = users[name] if known else next(iter(users.values()))
        digest = hmac.new(self._key, b"\0".join((name.encode(), hashed.encode(), password)), hashlib.sha256).digest()
        if digest in self._answers:
            self._answers.move_to_end(digest)
            return self._answers[digest]
        if self._waiting >= _WAITING_AT_MOST:
            raise BusyError
        self._waiting += 1
        try:
            right = await asyncio.get_running_loop().run_in_executor(self._worker, _check, password, hashed) and known
        finally:
            self._waiting -= 1
        self._remember(digest, right)
        return right

    def _remember(self, digest: bytes, right: bool) -> None:
        """Keep an answer; wrong ones make room first, so that guessing cannot push the right ones out."""
        if len(self._answers) >= _REMEMBERED:
            oldest_wrong = next((d for d, was_right in self._answers.items() if not was_right), None)
            self._answers.pop(oldest_wrong if oldest_wrong is not None else next(iter(self._answers)))
        self._answers[digest] = right

    def close(self) -> None:
        """Let the worker go; a check under way ends by itself."""
        self._worker.shutdown(wait=False, cancel_futures=True)


def _basic(authorization: str) -> tuple[str, bytes] | None:
    """Name and password of an Authorization header (RFC 7617); None where it is none or is malformed.

    >>> _basic("Basic " + base64.b64encode(b"me:a:b").decode())
    ('me', b'a:b')
    """
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode("utf-8"), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _check(password: bytes, hashed: str) -> bool:
    if len(password) > _LONGEST_PASSWORD_BYTES or b"\0" in password:
        return False
    try:
        return bcrypt.checkpw(password, hashed.encode("ascii"))
    except ValueError:
        return False
