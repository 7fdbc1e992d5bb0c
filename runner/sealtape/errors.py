"""Every error a user can meet, with the exit code it ends a run with."""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_FAILED = 1  # as pytest has it: tests failed
EXIT_USAGE = 64
EXIT_NO_ENGINE = 69
EXIT_NOT_SEALED = 70
EXIT_REFUSED = 77
EXIT_INTERRUPTED = 130


class SealtapeError(Exception):
    """Base of the errors that end a command.

    `message` says what failed, what is required and what was found; `tip` says what to do.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, tip: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.tip = tip

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class without its keyword argument and lose the tip.
        return (_rebuild, (type(self), self.message, self.tip))

    def __str__(self) -> str:
        return f"{self.message}\n  {self.tip}" if self.tip else self.message


class UsageError(SealtapeError):
    """A command line that cannot be carried out."""

    exit_code = EXIT_USAGE


class ConfigError(SealtapeError):
    """A setting, in `pyproject.toml` or the environment, that is wrong."""

    exit_code = EXIT_USAGE


class EngineError(SealtapeError):
    """No engine can make the sandbox, or the engine failed to."""

    exit_code = EXIT_NO_ENGINE


class NotSealedError(SealtapeError):
    """The sandbox has a way out; no test was run."""

    exit_code = EXIT_NOT_SEALED


class RefusedError(SealtapeError):
    """Something that is not allowed here: recording in CI, a secret in a recording, a spent budget."""

    exit_code = EXIT_REFUSED


class CassetteError(SealtapeError):
    """A recording that cannot be read, or does not fit its name."""

    exit_code = EXIT_USAGE


class SecretError(SealtapeError):
    """A recording that would have carried a secret. It was not written."""

    exit_code = EXIT_REFUSED


class Unanswered(BaseException):
    """A question that gets no answer in this run, and that no `except Exception` may hide.

    SDKs wrap whatever they catch into "Connection error", after retries with sleeps, and
    applications catch `Exception` and fall back. Deriving from `BaseException` leaves both at
    once. It is deliberately no `OSError` either.
    """

    def __init__(self, key: str, prompt: str = "", message: str = "") -> None:
        super().__init__(key, prompt, message)
        self.key = key
        self.prompt = prompt
        self.message = message

    def __str__(self) -> str:
        return self.message or f"no answer for the question {self.key}"


class CassetteMiss(Unanswered):
    """Replay has no recording for a question.

    `key` is the question's key, `prompt` what the model was asked (empty where the request has
    none), `message` the whole explanation.
    """

    def __str__(self) -> str:
        return self.message or f"no recording for the question {self.key}"


class CallRefused(Unanswered):
    """The broker did not carry out a call of the record session: host, budget or credential."""


def _rebuild(cls: type[SealtapeError], message: str, tip: str | None) -> SealtapeError:
    return cls(message, tip=tip)
