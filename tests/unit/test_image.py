"""What an image is built from, and when it is built again."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from sealtape.config import Build, Settings
from sealtape.errors import ConfigError
from sealtape.sandbox.image import make_recipe

CONTAINERFILE = """\
# COPY commented.txt /
ARG BASE=python:3.12-slim
FROM ${BASE} AS build
COPY .sealtape-build/ /.sealtape-build/
COPY --chown=1:1 pyproject.toml \\
     src/ /project/
FROM ${BASE} AS guest
COPY --from=build /opt/venv /opt/venv
FROM other:1 AS broker
COPY ["with space.txt", "/"]
"""


@pytest.fixture
def settings(tmp_path):
    for name in (
        "pyproject.toml",
        "src/a.py",
        "src/b/c.py",
        "src/.env",
        "src/__pycache__/a.pyc",
        "with space.txt",
        "unused.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "Containerfile").write_text(CONTAINERFILE)
    return Settings(root=tmp_path)


def tag(settings, target="guest", bases=("sha256:1",)):
    return make_recipe(settings, target).tag(bases)


def test_the_context_is_what_is_copied(settings):
    recipe = make_recipe(settings, "guest")
    expected = [".sealtape-build/ca.pem", ".sealtape-build/pip.conf", "Containerfile", "pyproject.toml"]
    expected += ["src/a.py", "src/b/c.py"]
    with tarfile.open(fileobj=io.BytesIO(recipe.context())) as archive:
        assert archive.getnames() == expected
    assert recipe.bases == ("python:3.12-slim",)


def test_a_later_target_needs_what_the_stages_above_it_need(settings):
    recipe = make_recipe(settings, "broker")
    assert {"with space.txt", "src/a.py"} <= set(recipe.files)
    assert recipe.bases == ("python:3.12-slim", "other:1")


def test_the_tag_changes_with_what_goes_in_and_only_then(settings):
    root = settings.root
    first = tag(settings)
    (root / "unused.txt").write_text("changed")
    (root / "with space.txt").write_text("changed")
    (root / "src/.env").write_text("changed")
    os.utime(root / "src/a.py", (1, 1))
    assert tag(settings) == first
    seen = {first, tag(settings, bases=("sha256:2",)), tag(settings, "broker")}
    (root / "src/a.py").write_text("changed")
    seen.add(tag(settings))
    (root / "src/a.py").chmod(0o755)
    seen.add(tag(settings))
    (root / "Containerfile").write_text(CONTAINERFILE + "# x\n")
    seen.add(tag(settings))
    seen.add(tag(replace(settings, build=Build(index={"PIP_INDEX_URL": "https://index.example"}))))
    seen.add(tag(replace(settings, build=Build(base_image="debian:12"))))
    assert len(seen) == 8


def test_build_settings_are_files_of_the_build_stages(settings, tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("CERTIFICATE")
    build = Build(ca_bundle=bundle, index={"PIP_EXTRA_INDEX_URL": "https://index.example"})
    recipe = make_recipe(replace(settings, build=build), "guest")
    assert recipe.files[".sealtape-build/ca.pem"][1] == b"CERTIFICATE"
    expected = "[global]\nextra-index-url = https://index.example\ncert = /.sealtape-build/ca.pem\n"
    assert recipe.files[".sealtape-build/pip.conf"][1].decode() == expected
    assert recipe.build_args == {}


def test_the_base_image_is_an_argument(settings):
    recipe = make_recipe(replace(settings, build=Build(base_image="debian:12")), "guest")
    assert recipe.bases == ("debian:12",)
    assert recipe.build_args == {"BASE": "debian:12"}


def test_two_checkouts_of_one_name_have_two_repositories(settings):
    repository = make_recipe(settings, "guest").repository
    other = settings.root / "elsewhere" / settings.root.name
    other.mkdir(parents=True)
    for path in ("Containerfile", "pyproject.toml"):
        (other / path).write_bytes((settings.root / path).read_bytes())
    (other / "src").mkdir()
    assert make_recipe(Settings(root=other), "guest").repository != repository
    assert repository.startswith("sealtape/")
    assert repository.endswith("-guest")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM x AS build\n", "has no stage 'guest'; it has build"),
        ("FROM x AS guest\nCOPY missing.txt /\n", "copies 'missing.txt', which does not exist"),
        (None, "does not exist; Docker needs it"),
    ],
)
def test_errors(settings, text, message):
    path: Path = settings.root / "Containerfile"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_recipe(settings, "guest")


def test_a_missing_ca_bundle(settings):
    build = Build(ca_bundle=settings.root / "no.pem")
    with pytest.raises(ConfigError, match=r"the CA bundle .*no\.pem cannot be read"):
        make_recipe(replace(settings, build=build), "guest")


def test_this_repositorys_own_images_copy_no_more_than_they_need():
    root = Path(__file__).parents[2]
    recipe = make_recipe(Settings(root=root), "guest")
    source = {name for name in recipe.files if name.startswith("runner/")}
    assert source == {"runner/sealtape/__init__.py"}
    final = (root / "Containerfile").read_text().split("AS guest\n")[1].split("FROM ")[0]
    assert ".sealtape-build" not in final
