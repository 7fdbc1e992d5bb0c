from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import sealtape


def test_what_is_exported_is_exactly_this() -> None:
    assert sealtape.__all__ == [
        "CallError",
        "CallRefused",
        "CassetteMiss",
        "SealtapeError",
        "__version__",
        "call",
        "key_for",
        "session",
    ]
    for name in sealtape.__all__:
        assert getattr(sealtape, name) is not None, name


def test_the_version_is_the_distributions() -> None:
    assert sealtape.__version__ == importlib.metadata.version("sealtape")


def test_importing_sealtape_imports_no_http_client_no_engine_and_no_pytest() -> None:
    heavy = ("httpx", "httpx2", "docker", "nox", "rich", "uvicorn", "pytest", "detect_secrets")
    code = f"import sealtape, sys; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
