from __future__ import annotations

import asyncio
import base64
import threading

import bcrypt
import pytest

from exporter import credentials
from exporter.credentials import BusyError, Credentials


def header(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def users() -> dict[str, str]:
    return {"prometheus": hashed("s3cret"), "zoë": hashed("pässword:with colon")}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every check that bcrypt really makes."""
    made: list[str] = []
    real = bcrypt.checkpw

    def counted(password: bytes, known: bytes) -> bool:
        made.append(password.decode())
        return real(password, known)

    monkeypatch.setattr(credentials.bcrypt, "checkpw", counted)
    return made


def ask(users: dict[str, str], *authorizations: str) -> list[bool]:
    async def run() -> list[bool]:
        asked = Credentials()
        answers = [await asked.allow(users, a) for a in authorizations]
        asked.close()
        return answers

    return asyncio.run(run())


def test_the_right_password_opens_and_others_do_not(users: dict[str, str]) -> None:
    tried = [("prometheus", "s3cret"), ("prometheus", "s3cret "), ("prometheus", ""), ("grafana", "s3cret")]
    assert ask(users, *(header(*t) for t in tried)) == [True, False, False, False]


def test_names_and_passwords_may_hold_any_letter(users: dict[str, str]) -> None:
    assert ask(users, header("zoë", "pässword:with colon")) == [True]


@pytest.mark.parametrize("given", ["", "Basic", "Basic ???", "Bearer abc", "Basic " + base64.b64encode(b"nocolon").decode(),
                                   "Basic " + base64.b64encode(b"\xff\xfe:x").decode()])  # fmt: skip
def test_what_is_no_basic_authentication_opens_nothing_and_costs_no_check(
    given: str, users: dict[str, str], checks: list[str]
) -> None:
    assert ask(users, given) == [False]
    assert checks == []


def test_a_password_is_checked_once_and_then_remembered_right_or_wrong(users: dict[str, str], checks: list[str]) -> None:
    assert ask(users, *[header("prometheus", "s3cret"), header("prometheus", "guess")] * 3) == [True, False] * 3
    assert checks == ["s3cret", "guess"]


def test_a_name_that_does_not_exist_costs_a_check_like_any_other(users: dict[str, str], checks: list[str]) -> None:
    assert ask(users, header("nobody", "s3cret")) == [False]
    assert checks == ["s3cret"]


def test_a_changed_password_makes_the_old_answer_worthless(users: dict[str, str]) -> None:
    async def run() -> list[bool]:
        asked = Credentials()
        before = await asked.allow(users, header("prometheus", "s3cret"))
        after = await asked.allow({"prometheus": hashed("new")}, header("prometheus", "s3cret"))
        asked.close()
        return [before, after]

    assert asyncio.run(run()) == [True, False]


def test_a_password_longer_than_bcrypt_reads_is_refused_not_cut(users: dict[str, str]) -> None:
    long = {"me": hashed("x" * 72)}
    assert ask(long, header("me", "x" * 72), header("me", "x" * 73), header("me", "x\0")) == [True, False, False]


def test_guessing_cannot_push_the_right_password_out(users: dict[str, str], checks: list[str]) -> None:
    guesses = [header("prometheus", str(n)) for n in range(200)]
    answers = ask(users, header("prometheus", "s3cret"), *guesses, header("prometheus", "s3cret"))
    assert answers == [True, *[False] * 200, True]
    assert checks.count("s3cret") == 1


def test_only_a_few_checks_may_wait_at_a_time(users: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(_: bytes, __: bytes) -> bool:
        return go_on.wait(10.0) and False

    monkeypatch.setattr(credentials.bcrypt, "checkpw", slow)

    async def run() -> list[object]:
        asked = Credentials()
        waiting = [asyncio.ensure_future(asked.allow(users, header("a", str(n)))) for n in range(20)]
        await asyncio.sleep(0.05)
        go_on.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        asked.close()
        return [type(a) for a in answers]

    assert asyncio.run(run()) == [bool] * 8 + [BusyError] * 12
