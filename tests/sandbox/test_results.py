"""`--out DIR`: what a sealed run brings back, what it refuses, and what it leaves alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from sealtape import runs
from sealtape.config import load
from sealtape.errors import UsageError
from sealtape.sandbox.results import bring_back, placed_results, prepare_out
from sealtape.screen import Screen

ESCAPES = """
    import os, pathlib, socket, subprocess, sys

    HERE = pathlib.Path(os.environ["SEALTAPE_OUT"])

    def test_writes():
        (HERE / "plain.txt").write_text("x")
        (HERE / "a folder é").mkdir()
        (HERE / "a folder é" / "inner.bin").write_bytes(bytes(range(256)))
        (HERE / "set-uid").write_text("x")
        (HERE / "set-uid").chmod(0o6755)
        (HERE / "report.json").write_text("forged")

    def test_writes_what_is_no_file():
        (HERE / "link").symlink_to("/etc/passwd")
        (HERE / "folder link").symlink_to("/etc")
        (HERE / "first name").write_text("x")
        os.link(HERE / "first name", HERE / "second name")
        os.mkfifo(HERE / "fifo")
        os.chdir(HERE)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("socket")

    def test_litters():
        for where in (".", "sub", "cassettes"):
            for name in ("new", "__pycache__/x.pyc", ".coverage", "test_a.py"):
                try:
                    pathlib.Path(PROJECT, where, name).write_text("x")
                except OSError:
                    continue
                raise AssertionError(where, name)
"""


def contents(folder):
    """Every path below a folder, with what is in it and whose it is."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, status.st_mtime_ns, digest)
    return found


@pytest.fixture
def replay(sandbox, tmp_path, monkeypatch):
    """`sealtape replay`, with the images of this session."""
    monkeypatch.setattr(runs, "_engine", lambda _run: sandbox.engine)
    monkeypatch.chdir(sandbox.root)
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)  # the placeholders of the session that runs this test
    target = tmp_path / "results"

    def run(*args, out=target):
        settings = load(sandbox.root, {})
        return runs.replay(runs.Run(settings=settings, screen=Screen(), pytest_args=args, out=out)), target

    return run


def test_regular_files_come_back_and_nothing_else(sandbox, replay, capfd):
    workdir = "/project" if sandbox.engine.name == "docker" else str(sandbox.root)
    sandbox.write("test_a.py", ESCAPES.replace("PROJECT", repr(workdir)))
    sandbox.write("sub/__pycache__/x.pyc", "")
    sandbox.write("cassettes/x.json", "")
    before = contents(sandbox.root)
    code, target = replay("--junitxml=junit.xml", "test_a.py")
    assert code == 0
    assert contents(sandbox.root) == before, "the checkout, byte for byte"
    assert sorted(contents(target)) == [
        "a folder é",
        "a folder é/inner.bin",
        "junit.xml",
        "plain.txt",
        "report.json",
        "set-uid",
    ]
    assert (target / "a folder é" / "inner.bin").read_bytes() == bytes(range(256))
    assert 'tests="3"' in (target / "junit.xml").read_text()
    assert json.loads((target / "report.json").read_text())["verdict"]["sealed"] is True
    for path in target.rglob("*"):
        assert (path.stat().st_uid, path.stat().st_mode & 0o7000) == (os.getuid(), 0)
    err = capfd.readouterr().err
    assert f"4 files of the tests brought back to {target}" in err
    for line in (
        "'link': a symbolic link",
        "'folder link': a symbolic link",
        "'first name': a hard link",
        "'second name': a hard link",
        "'fifo': a FIFO",
        "'socket': a socket",
        "'report.json': the run writes a file of that name itself",
    ):
        assert f"  refused {line}\n" in err


def test_the_folder_itself_may_be_turned_into_a_way_out(sandbox, replay, capfd):
    text = (
        'import os\ndef test_a():\n    os.rmdir("/sealtape/out/files")\n    os.symlink("/etc", "/sealtape/out/files")\n'
    )
    sandbox.write("test_a.py", text)
    code, target = replay("test_a.py")
    assert code == 0
    assert [path.name for path in target.iterdir()] == ["report.json"]
    assert "refused all: $SEALTAPE_OUT is no folder any more" in capfd.readouterr().err


def test_devices_are_refused(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    os.mknod(source / "zero", 0o20666, os.makedev(1, 5))
    assert bring_back(source, target).refused == ("'zero': a device",)
    assert not any(target.iterdir())


def test_links_in_the_target_are_not_written_through(tmp_path):
    source, target, elsewhere = tmp_path / "source", tmp_path / "target", tmp_path / "elsewhere"
    for folder in (source, target, elsewhere):
        folder.mkdir()
    (source / "folder").mkdir()
    (source / "folder" / "file").write_text("new")
    (source / "file").write_text("new")
    (elsewhere / "file").write_text("old")
    (target / "folder").symlink_to(elsewhere)
    (target / "file").symlink_to(elsewhere / "file")
    brought = bring_back(source, target)
    assert brought.files == ("file",)
    assert [line.partition(":")[0] for line in brought.refused] == ["'folder'"]
    assert (elsewhere / "file").read_text() == "old"
    assert (target / "file").read_text() == "new"
    assert not (target / "file").is_symlink()


@pytest.mark.parametrize(
    ("args", "placed"),
    [
        (["--junitxml=j.xml"], ["--junitxml=/sealtape/out/files/j.xml"]),
        (["--junit-xml", "a b/j.xml"], ["--junit-xml", "/sealtape/out/files/a b/j.xml"]),
        (["--junitxml=results/j.xml"], ["--junitxml=/sealtape/out/files/j.xml"]),
        (["--junitxml=$SEALTAPE_OUT/j.xml"], ["--junitxml=$SEALTAPE_OUT/j.xml"]),
        (["--cov-report=xml"], ["--cov-report=xml:/sealtape/out/files/coverage.xml"]),
        (["--cov-report", "html:h"], ["--cov-report", "html:/sealtape/out/files/h"]),
        (["--cov=src", "--cov-report=term-missing"], ["--cov=src", "--cov-report=term-missing"]),
        (["-k", "junitxml", "tests"], ["-k", "junitxml", "tests"]),
    ],
)
def test_files_that_pytest_writes_are_placed_in_the_folder(tmp_path, monkeypatch, args, placed):
    monkeypatch.chdir(tmp_path)
    assert placed_results(args, Path("results")) == tuple(placed)


@pytest.mark.parametrize(
    ("args", "out", "message"),
    [
        (["--junitxml=j.xml"], None, "add --out results"),
        (["--cov-report", "xml"], None, "add --out results"),
        (["--junitxml=../j.xml"], Path("results"), "../j.xml is not in results"),
        (["--junitxml=/srv/j.xml"], Path("results"), "/srv/j.xml is not in results"),
    ],
)
def test_a_file_that_would_be_lost_is_refused_before_the_run(args, out, message):
    with pytest.raises(UsageError) as caught:
        placed_results(args, out)
    assert message in str(caught.value)


@pytest.mark.parametrize("folder", [".", "..", "pyproject.toml"])
def test_a_folder_that_cannot_take_results_is_refused_before_the_run(tmp_path, monkeypatch, folder):
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    with pytest.raises(UsageError, match="--out"):
        prepare_out(Path(folder), root)
    shutil.rmtree(root)
