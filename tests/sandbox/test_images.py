"""Images: built when something changed, with nothing of how they were built in them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from sealtape.config import load
from sealtape.errors import EngineError
from sealtape.sandbox.engine import find_engine

CONTAINERFILE = """\
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
COPY .sealtape-build/ /.sealtape-build/
COPY word.txt /venv/
RUN grep -q index.example /.sealtape-build/pip.conf && cp /.sealtape-build/pip.conf /venv/seen
RUN rm /venv/seen
FROM ${BASE} AS guest
COPY --from=build /venv /venv
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "word.txt").write_text("one")
    (tmp_path / "Containerfile").write_text(CONTAINERFILE)
    settings = load(tmp_path, os.environ)
    yield replace(
        settings, build=replace(settings.build, index={"PIP_INDEX_URL": "https://user:pass-word@index.example"})
    )
    for image in images():
        subprocess.run(["docker", "rmi", "-f", image], check=True, capture_output=True)


def docker(*arguments):
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def images():
    names = docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    return [name for name in names if name.startswith("sealtape/test-")]


def build(settings):
    lines = []
    find_engine("docker").prepare(settings, lines.append)
    return lines


def test_an_image_is_built_when_something_changed(settings):
    lines = build(settings)
    assert lines[0].startswith("building sealtape/")
    assert lines[1] == "Step 1/8 : ARG BASE=python:3.12-slim"
    assert build(settings) == []
    first = images()
    assert len(first) == 1
    (settings.root / "word.txt").write_text("two")
    assert build(settings)
    assert len(images()) == 1
    assert images() != first


def test_nothing_of_the_build_settings_is_in_the_image(settings):
    build(settings)
    (image,) = images()
    history = docker("history", "--no-trunc", image)
    assert "COPY" in history
    everything = history + docker("inspect", image)
    assert "index.example" not in everything
    found = docker("run", "--rm", "--network", "none", image, "sh", "-c", "ls /venv; ls -d /.sealtape-build || true")
    assert found == "word.txt\n"


def test_a_failing_step_shows_its_last_lines(settings):
    (settings.root / "Containerfile").write_text("ARG BASE=x\nFROM ${BASE} AS guest\nRUN echo the reason; exit 7\n")
    with pytest.raises(EngineError, match=r"returned a non-zero code: 7\n +the reason") as caught:
        build(settings)
    assert caught.value.exit_code == 69


def test_a_base_image_that_is_not_to_be_had(settings):
    missing = replace(settings.build, base_image="127.0.0.1:9/no/such:image")
    with pytest.raises(EngineError, match=r"the base image 127\.0\.0\.1:9/no/such:image is not here") as caught:
        build(replace(settings, build=missing))
    assert "SEALTAPE_BASE_IMAGE" in (caught.value.tip or "")
