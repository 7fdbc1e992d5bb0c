from __future__ import annotations

import pickle

import pytest

from sealtape import errors
from sealtape.errors import CallRefused, CassetteMiss, SealtapeError, Unanswered
from sealtape.guest.ask import CallError

EXIT_CODES = {
    "SealtapeError": 1,
    "UsageError": 64,
    "ConfigError": 64,
    "EngineError": 69,
    "NotSealedError": 70,
    "RefusedError": 77,
    "CassetteError": 64,
    "SecretError": 77,
}
CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SealtapeError)] + [
    CallError
]


def test_every_error_has_its_exit_code() -> None:
    assert {cls.__name__: cls.exit_code for cls in CLASSES if cls is not CallError} == EXIT_CODES
    assert errors.EXIT_INTERRUPTED == 130


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("tip", [None, "do this"])
def test_an_error_survives_pickling(cls: type[SealtapeError], tip: str | None) -> None:
    again = pickle.loads(pickle.dumps(cls("it failed", tip=tip)))  # noqa: S301
    assert type(again) is cls
    assert (again.message, again.tip) == ("it failed", tip)
    assert str(again) == ("it failed\n  do this" if tip else "it failed")


@pytest.mark.parametrize("cls", [Unanswered, CassetteMiss, CallRefused])
def test_an_unanswered_question_survives_pickling(cls: type[Unanswered]) -> None:
    again = pickle.loads(pickle.dumps(cls("0123456789abcdef", "Hello", "why")))  # noqa: S301
    assert type(again) is cls
    assert (again.key, again.prompt, again.message, str(again)) == ("0123456789abcdef", "Hello", "why", "why")


@pytest.mark.parametrize("cls", [CassetteMiss, CallRefused])
def test_no_except_exception_catches_it(cls: type[Unanswered]) -> None:
    assert not issubclass(cls, Exception)
    assert not issubclass(cls, OSError)


def test_without_a_message_the_key_is_named() -> None:
    assert str(CassetteMiss("0123456789abcdef", "Hello")) == "no recording for the question 0123456789abcdef"
    assert "0123456789abcdef" in str(CallRefused("0123456789abcdef"))
