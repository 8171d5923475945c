"""The web configuration file that exporters share (Prometheus exporter-toolkit): TLS, headers, basic authentication.

`server` loads it at the start and asks `WebConfigFile.refresh` once a second whether a file behind it has changed. What
Python's ssl cannot do as Go does is refused with a reason, never ignored in silence. Format: exporter-toolkit,
docs/web-configuration.md.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.config import ConfigError, load_yaml

log = logging.getLogger(__name__)


class WebConfigError(ValueError):
    """The file cannot be used; the message names file, key, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says. Without a file: plain HTTP for everybody."""

    tls: ssl.SSLContext | None = None
    allowed_sans: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)  # name -> bcrypt hash
    open_paths: frozenset[str] = frozenset()  # need no authentication
    files: tuple[str, ...] = ()  # that it was made of


_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks for a certificate and takes any or none: the same as not asking
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# Go's names of the suites for TLS 1.2, and OpenSSL's. Those of TLS 1.3 cannot be chosen, in Go neither.
_CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_HEADERS: Mapping[str, tuple[str, ...]] = {  # header -> values allowed; empty: any
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
_BCRYPT = re.compile(r"\$2[abxy]?\$\d\d\$[./A-Za-z0-9]{53}")
# Inline PEM on the left, the file on the right: one of the two.
_PEM = {"cert": "cert_file", "key": "key_file", "client_ca": "client_ca_file"}


def load(path: str) -> WebConfig:
    """Read and check the file; WebConfigError says what is wrong with it. An empty file is plain HTTP."""
    try:
        content = load_yaml(path)
    except ConfigError as error:
        raise WebConfigError(str(error)) from None
    try:
        return _parse({} if content is None else content, Path(path))
    except WebConfigError as error:
        raise WebConfigError(f"{path}: {error}") from None


def _parse(content: Any, path: Path) -> WebConfig:
    top = _mapping("the file", content, ("tls_server_config", "http_server_config", "basic_auth_users", "auth_excluded_paths"))
    tls = _mapping("tls_server_config", top.get("tls_server_config") or {},
                   (*_PEM, *_PEM.values(), "client_auth_type", "client_allowed_sans", "min_version", "max_version",
                    "cipher_suites", "prefer_server_cipher_suites", "curve_preferences"))
    http = _mapping("http_server_config", top.get("http_server_config") or {}, ("http2", "headers"))
    _flag("http_server_config.http2", http.get("http2", True))  # accepted; answers are HTTP/1.1 either way
    files = tuple(str(path.parent / str(tls[key])) for key in _PEM.values() if tls.get(key))
    return WebConfig(
        tls=_context(tls, path.parent) if tls else None,
        allowed_sans=frozenset(_texts("tls_server_config.client_allowed_sans", tls.get("client_allowed_sans"))),
        headers=_headers(http.get("headers") or {}),
        users=_users(top.get("basic_auth_users") or {}),
        open_paths=frozenset(_texts("auth_excluded_paths", top.get("auth_excluded_paths"))),
        files=(str(path), *files),
    )


def _bad(key: str, value: object, allowed: str) -> WebConfigError:
    return WebConfigError(f"{key}: {value!r} is not allowed: {allowed}")


def _mapping(key: str, value: Any, allowed: Iterable[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _bad(key, value, "expected keys with values")
    if allowed is not None:
        for unknown in value:
            if unknown not in (known := tuple(allowed)):
                raise WebConfigError(f"{key}: unknown key {unknown!r}: expected one of {', '.join(known)}")
    return value


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(key, value, "expected a list of texts")
    return tuple(value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad(key, value, "expected true or false")
    return value


def _choice(key: str, value: Any, choices: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise _bad(key, value, f"expected one of {', '.join(choices)}")
    return choices[value]


def _headers(given: Any) -> Mapping[str, str]:
    headers = {}
    for name, value in _mapping("http_server_config.headers", given, _HEADERS).items():
        key, allowed = f"http_server_config.headers.{name}", _HEADERS[name]
        if not isinstance(value, str) or "\n" in value or "\r" in value:
            raise _bad(key, value, "expected one line of text")
        if value and allowed and value.lower() not in allowed:
            raise _bad(key, value, f"expected one of {', '.join(allowed)}")
        if value:
            headers[name] = value
    return headers


def _users(given: Any) -> Mapping[str, str]:
    for name, hashed in _mapping("basic_auth_users", given, None).items():
        if not isinstance(name, str) or not name or ":" in name:
            raise _bad("basic_auth_users", name, "expected a name without a colon")
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            # The value may be a password written in clear by mistake: it is not repeated.
            raise WebConfigError(f"basic_auth_users.{name}: the value is not allowed: expected a bcrypt hash ($2y$10$...)")
    return dict(given)


def _context(tls: Mapping[str, Any], directory: Path) -> ssl.SSLContext:
    at = "tls_server_config."
    for inline, file_key in _PEM.items():
        if tls.get(inline) and tls.get(file_key):
            raise WebConfigError(f"{at}{inline} and {at}{file_key} are both given: expected one of them")
    low = _choice(at + "min_version", tls.get("min_version", "TLS12"), _VERSIONS)
    high = _choice(at + "max_version", tls.get("max_version", "TLS13"), _VERSIONS)
    if high < low:
        raise _bad(at + "max_version", tls["max_version"], "expected a version not below min_version")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = low, high
    if _flag(at + "prefer_server_cipher_suites", tls.get("prefer_server_cipher_suites", True)):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    wanted = _texts(at + "cipher_suites", tls.get("cipher_suites"))
    if ciphers := [name for suite in wanted if (name := _choice(at + "cipher_suites", suite, _CIPHERS))]:
        context.set_ciphers(":".join(ciphers))
    curves = _texts(at + "curve_preferences", tls.get("curve_preferences"))
    if len(curves) > 1:
        raise _bad(at + "curve_preferences", list(curves), "expected one curve, or none to leave the choice to OpenSSL")
    for curve in curves:
        context.set_ecdh_curve(_choice(at + "curve_preferences", curve, _CURVES))
    with ExitStack() as opened:
        cert, key, authority = (_pem(tls, inline, directory, opened) for inline in _PEM)
        if cert is None or key is None:
            missing = "cert" if cert is None else "key"
            raise WebConfigError(f"{at}{missing}_file: missing: expected the path of a PEM file")
        _loaded(at + "cert_file and key_file", lambda: context.load_cert_chain(cert, key, _no_password))
        mode = _choice(at + "client_auth_type", tls.get("client_auth_type") or "NoClientCert", _CLIENT_AUTH)
        if mode != ssl.CERT_NONE and authority is None:
            raise WebConfigError(f"{at}client_ca_file: missing: client_auth_type {tls['client_auth_type']} needs it")
        if authority is not None and mode == ssl.CERT_NONE:
            raise _bad(at + "client_auth_type", tls.get("client_auth_type", "NoClientCert"),
                       "with client_ca_file expected VerifyClientCertIfGiven or RequireAndVerifyClientCert")
        if authority is not None:
            _loaded(at + "client_ca_file", lambda: context.load_verify_locations(authority))
        if tls.get("client_allowed_sans") and mode != ssl.CERT_REQUIRED:
            raise _bad(at + "client_auth_type", tls.get("client_auth_type", "NoClientCert"),
                       "with client_allowed_sans expected RequireAndVerifyClientCert")
        context.verify_mode = mode
    return context


def _no_password() -> str:
    """An encrypted key must fail with a message; OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted")


def _loaded(key: str, load_into: Callable[[], None]) -> None:
    try:
        load_into()
    except (ValueError, OSError) as error:  # ssl.SSLError is an OSError
        raise WebConfigError(f"{key}: cannot be loaded: {getattr(error, 'reason', None) or error}") from None


def _pem(tls: Mapping[str, Any], inline: str, directory: Path, opened: ExitStack) -> str | None:
    """Path of a PEM file. Inline text gets one in memory, because ssl takes paths only (memfd_create(2))."""
    file_key = _PEM[inline]
    if (name := tls.get(file_key)) is not None:
        path = directory / str(name)
        try:
            path.open("rb").close()
        except OSError as error:
            raise WebConfigError(f"tls_server_config.{file_key}: {path} cannot be read: {error.strerror or error}") from None
        return str(path)
    if (text := tls.get(inline)) is None:
        return None
    descriptor = os.memfd_create(inline, os.MFD_CLOEXEC)
    opened.callback(os.close, descriptor)
    os.write(descriptor, str(text).encode())
    return f"/proc/self/fd/{descriptor}"


class WebConfigFile:
    """The file over time: `current` is the last good one; a bad one later keeps it and says why, once."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self.current = load(path) if path else WebConfig()
        self._marks = _marks(self.current.files)

    def refresh(self) -> bool:
        """Load again where a file has changed since; True if `current` is new."""
        if self._path is None or (marks := _marks(self.current.files)) == self._marks:
            return False
        self._marks = marks
        try:
            self.current = load(self._path)
        except WebConfigError as error:
            log.error("the web configuration was not taken, the old one stays: %s", error)
            return False
        self._marks = _marks(self.current.files)
        log.info("the web configuration was read again")
        return True


def _marks(files: tuple[str, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    return tuple(map(_mark, files))


def _mark(name: str) -> tuple[int, int, int] | None:
    """What tells a changed file: inode, size, time of change. Follows the links that Kubernetes swaps."""
    try:
        stat = Path(name).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
