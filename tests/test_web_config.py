from __future__ import annotations

import logging
import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.web_config import WebConfig, WebConfigError, WebConfigFile, load

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
Write = Callable[[str], str]


def certificate(directory: Path, name: str, subject: str = "localhost") -> None:
    """A key and a certificate for it, signed by itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={subject}", "-addext", f"subjectAltName=DNS:{subject},IP:127.0.0.1",
         "-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.crt")],
        check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pems")
    certificate(directory, "server")
    certificate(directory, "other")
    return directory


@pytest.fixture
def write(tmp_path: Path, pems: Path) -> Write:
    """Writes a web configuration next to server.crt, server.key and the other pair."""
    for pem in pems.iterdir():
        (tmp_path / pem.name).write_bytes(pem.read_bytes())

    def write(text: str) -> str:
        path = tmp_path / "web.yml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"


def tls(more: str) -> str:
    return TLS.replace("}", f", {more}}}")


def test_an_empty_file_is_plain_http_for_everybody(write: Write) -> None:
    config = load(write(""))
    assert (config.tls, config.users, config.headers) == (None, {}, {})


def test_a_full_file_is_taken(write: Write) -> None:
    config = load(write(tls("client_auth_type: RequireAndVerifyClientCert, client_ca_file: other.crt, min_version: TLS13,"
                            " cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],"
                            " curve_preferences: [CurveP256], client_allowed_sans: [a.example],"
                            " prefer_server_cipher_suites: false")
                        + "http_server_config: {http2: true, headers: {X-Frame-Options: deny, X-XSS-Protection: ''}}\n"
                        f"basic_auth_users: {{prometheus: '{HASH}'}}\nauth_excluded_paths: [/-/healthy]\n"))  # fmt: skip
    assert config.tls is not None
    assert config.tls.verify_mode is ssl.CERT_REQUIRED
    assert config.tls.minimum_version is ssl.TLSVersion.TLSv1_3
    assert config.headers == {"X-Frame-Options": "deny"}
    assert config.users == {"prometheus": HASH}
    assert config.allowed_sans == {"a.example"}
    assert config.open_paths == {"/-/healthy"}
    assert [Path(f).name for f in config.files] == ["web.yml", "server.crt", "server.key", "other.crt"]


def test_tls_1_2_is_the_lowest_version_unless_told_otherwise(write: Write) -> None:
    context = load(write(TLS)).tls
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_chosen_cipher_suites_are_those_of_tls_1_2(write: Write) -> None:
    context = load(write(tls("cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]"))).tls
    assert context is not None
    old = {c["name"] for c in context.get_ciphers() if c["protocol"] == "TLSv1.2"}
    assert old == {"ECDHE-ECDSA-CHACHA20-POLY1305"}


def test_certificate_and_key_may_stand_in_the_file_itself(write: Write, pems: Path) -> None:
    def block(name: str) -> str:
        return "\n".join("    " + line for line in (pems / name).read_text().splitlines())

    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only names are compared
    config = load(write(f"tls_server_config:\n  cert: |\n{block('server.crt')}\n  key: |\n{block('server.key')}\n"))
    assert config.tls is not None
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(("text", "says"), [
    ("[]", "the file: [] is not allowed"),
    ("colour: red", "the file: unknown key 'colour': expected one of tls_server_config, http_server_config"),
    ("tls_server_config: {certfile: a}", "tls_server_config: unknown key 'certfile'"),
    ("tls_server_config: {cert_file: server.crt}", "tls_server_config.key_file: missing"),
    ("tls_server_config: {key_file: server.key}", "tls_server_config.cert_file: missing"),
    ("tls_server_config: {cert_file: none.crt, key_file: server.key}", "none.crt cannot be read: No such file"),
    ("tls_server_config: {cert_file: server.crt, key_file: other.key}", "cannot be loaded"),
    ("tls_server_config: {cert_file: web.yml, key_file: server.key}", "cannot be loaded"),
    (tls("cert: abc"), "tls_server_config.cert and tls_server_config.cert_file are both given"),
    (tls("min_version: TLS10"), "tls_server_config.min_version: 'TLS10' is not allowed: expected one of TLS12, TLS13"),
    (tls("min_version: TLS13, max_version: TLS12"), "tls_server_config.max_version: 'TLS12' is not allowed"),
    (tls("client_auth_type: Sometimes"), "tls_server_config.client_auth_type: 'Sometimes' is not allowed: expected"),
    (tls("client_auth_type: RequireAnyClientCert"), "client_auth_type: 'RequireAnyClientCert' is not allowed"),
    (tls("client_auth_type: RequireAndVerifyClientCert"), "tls_server_config.client_ca_file: missing"),
    (tls("client_ca_file: other.crt"), "client_auth_type: 'NoClientCert' is not allowed: with client_ca_file"),
    (tls("client_allowed_sans: [a]"), "with client_allowed_sans expected RequireAndVerifyClientCert"),
    (tls("cipher_suites: [ROT13]"), "tls_server_config.cipher_suites: 'ROT13' is not allowed"),
    (tls("cipher_suites: ROT13"), "expected a list of texts"),
    (tls("curve_preferences: [CurveP256, CurveP384]"), "expected one curve"),
    (tls("prefer_server_cipher_suites: perhaps"), "prefer_server_cipher_suites: 'perhaps' is not allowed: expected true"),
    ("http_server_config: {http2: 2}", "http_server_config.http2: 2 is not allowed: expected true or false"),
    ("http_server_config: {headers: {Server: x}}", "http_server_config.headers: unknown key 'Server'"),
    ("http_server_config: {headers: {X-Frame-Options: maybe}}", "expected one of deny, sameorigin"),
    ('http_server_config: {headers: {X-XSS-Protection: "0\\r\\nX: y"}}', "expected one line of text"),
    ("basic_auth_users: {me: hunter2}", "basic_auth_users.me: the value is not allowed: expected a bcrypt hash"),
    ("basic_auth_users: [me]", "basic_auth_users: ['me'] is not allowed"),
    (f"basic_auth_users: {{'a:b': '{HASH}'}}", "expected a name without a colon"),
    ("auth_excluded_paths: /metrics", "auth_excluded_paths: '/metrics' is not allowed: expected a list of texts"),
    ("tls_server_config: {", "not valid YAML"),
])  # fmt: skip
def test_a_bad_file_is_refused_with_file_key_value_and_what_is_allowed(text: str, says: str, write: Write) -> None:
    with pytest.raises(WebConfigError) as raised:
        load(write(text))
    message = str(raised.value)
    assert says in message
    assert "web.yml" in message
    assert "\n" not in message
    assert "hunter2" not in message


def test_an_encrypted_key_is_refused_without_asking_at_the_terminal(write: Write, tmp_path: Path) -> None:
    subprocess.run(["openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", str(tmp_path / "server.key"),
                    "-out", str(tmp_path / "locked.key")], check=True, capture_output=True)  # fmt: skip
    with pytest.raises(WebConfigError, match="the key is encrypted"):
        load(write("tls_server_config: {cert_file: server.crt, key_file: locked.key}"))


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(WebConfigError, match="cannot be read"):
        load("/nowhere/web.yml")


def test_without_a_file_there_is_nothing_to_refresh() -> None:
    file = WebConfigFile(None)
    assert file.current == WebConfig()
    assert not file.refresh()


def test_an_unchanged_file_is_not_read_again(write: Write) -> None:
    file = WebConfigFile(write(TLS))
    before = file.current
    assert not file.refresh()
    assert file.current is before


def test_a_changed_file_is_taken_and_a_bad_one_keeps_the_old_and_says_so_once(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    file = WebConfigFile(write(""))
    write(f"basic_auth_users: {{me: '{HASH}'}}")
    assert file.refresh()
    assert file.current.users == {"me": HASH}
    write("basic_auth_users: {me: hunter2}")
    with caplog.at_level(logging.ERROR):
        assert not file.refresh()
        assert not file.refresh()
    assert file.current.users == {"me": HASH}
    assert len(caplog.records) == 1
    assert "expected a bcrypt hash" in caplog.text
    write("")
    assert file.refresh()
    assert file.current.users == {}


def test_a_renewed_certificate_is_taken(write: Write, tmp_path: Path) -> None:
    file = WebConfigFile(write(TLS))
    before = file.current.tls
    (tmp_path / "server.crt").write_bytes((tmp_path / "other.crt").read_bytes())
    assert not file.refresh()  # the key does not fit yet
    assert file.current.tls is before
    (tmp_path / "server.key").write_bytes((tmp_path / "other.key").read_bytes())
    assert file.refresh()
    assert file.current.tls is not before
