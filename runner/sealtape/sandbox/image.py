"""What an image is built from: the Containerfile, exactly the files it copies, and the build settings.

The context holds nothing else, so that an image is built anew when, and only when, something that
goes into it has changed. Index settings and a CA bundle are part of the context, under
`.sealtape-build/`, which only build stages copy: they are in no final image and in no history.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sealtape.config import Build, Settings
from sealtape.errors import ConfigError
from sealtape.sandbox.survey import PRUNED

SETTINGS_FOLDER = ".sealtape-build"
_CA_IN_BUILD = f"/{SETTINGS_FOLDER}/ca.pem"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One image, ready to be built. `bases` are the images it starts from."""

    repository: str
    containerfile: str
    target: str
    bases: tuple[str, ...]
    build_args: dict[str, str]
    files: dict[str, tuple[int, bytes]]

    def tag(self, base_ids: tuple[str, ...]) -> str:
        """The image's full name; the same if and only if everything that goes into it is."""
        digest = hashlib.sha256(json.dumps([self.target, self.build_args, base_ids]).encode())
        for name, (mode, content) in sorted(self.files.items()):
            digest.update(f"\0{name}\0{mode:o}\0{len(content)}\0".encode(errors="surrogateescape"))
            digest.update(content)
        return f"{self.repository}:{digest.hexdigest()[:16]}"

    def context(self) -> bytes:
        """The build context as a tar archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, (mode, content) in sorted(self.files.items()):
                entry = tarfile.TarInfo(name)
                entry.mode, entry.size = mode, len(content)
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()


def make_recipe(settings: Settings, target: str) -> Recipe:
    """The recipe for one target of the project's Containerfile. Raises `ConfigError`."""
    path = settings.root / settings.build.containerfile
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; Docker needs it to build the sandbox's image",
            tip='name it in [tool.sealtape.build] containerfile, or use engine = "bubblewrap"',
        ) from None
    instructions = list(_up_to(target, _instructions(text), path))
    arguments = {"BASE": settings.build.base_image} if settings.build.base_image else {}
    files = {settings.build.containerfile: (0o644, text.encode())}
    for source in _sources(instructions):
        own = source.startswith(SETTINGS_FOLDER)
        files |= dict(_settings_files(settings.build) if own else _copied(settings, source))
    return Recipe(
        repository=f"sealtape/{_slug(path)}-{target}",
        containerfile=settings.build.containerfile,
        target=target,
        bases=tuple(dict.fromkeys(_bases(instructions, arguments))),
        build_args=arguments,
        files=files,
    )


def _slug(containerfile: Path) -> str:
    """The project's name as a part of an image's name; two checkouts of one project are told apart."""
    name = re.sub(r"[^a-z0-9]+", "-", containerfile.parent.name.lower()).strip("-") or "project"
    return f"{name}-{hashlib.sha256(str(containerfile).encode(errors='surrogateescape')).hexdigest()[:6]}"


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """(instruction, rest of the line), with continued lines joined and comments dropped."""
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        name, _, rest = pending.strip().partition(" ")
        pending = ""
        if name:
            yield name.upper(), rest.strip()


def _up_to(target: str, instructions: Iterator[tuple[str, str]], path: Path) -> Iterator[tuple[str, str]]:
    """The instructions a builder reaches for `target`: the classic one runs every stage above it."""
    seen = False
    stages: list[str] = []
    for name, rest in instructions:
        if name == "FROM":
            if seen:
                return
            match = re.search(r"\sas\s+(\S+)$", rest, re.IGNORECASE)
            stages.append(match.group(1) if match else rest)
            seen = stages[-1] == target
        yield name, rest
    if not seen:
        raise ConfigError(
            f"{path} has no stage {target!r}; it has {', '.join(stages) or 'none'}",
            tip=f"add a stage: FROM … AS {target}",
        )


def _bases(instructions: list[tuple[str, str]], arguments: dict[str, str]) -> Iterator[str]:
    values: dict[str, str] = {}
    stages: set[str] = set()
    for name, rest in instructions:
        if name == "ARG" and not stages:
            key, _, default = rest.partition("=")
            values[key] = arguments.get(key, default.strip("\"'"))
        elif name == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            image = re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], ""), words[0])
            if image not in stages and image != "scratch":
                yield image
            stages.add(words[-1])


def _sources(instructions: list[tuple[str, str]]) -> Iterator[str]:
    """What COPY and ADD take from the context."""
    for name, rest in instructions:
        if name in ("COPY", "ADD") and "--from=" not in rest:
            plain = re.sub(r"^(--\S+\s+)+", "", rest)
            words = json.loads(plain) if plain.startswith("[") else shlex.split(plain)
            yield from (word.removeprefix("./").strip("/") or "." for word in words[:-1] if "://" not in word)


def _copied(settings: Settings, source: str) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """The files of one source; what the guest may not see does not get into an image either."""
    matches = sorted(settings.root.glob(source)) if source != "." else [settings.root]
    if not matches:
        raise ConfigError(f"{settings.build.containerfile} copies {source!r}, which does not exist in {settings.root}")
    excluded = (*settings.mask, *PRUNED, ".venv", ".nox")
    for match in matches:
        for path in sorted(match.rglob("*")) if match.is_dir() else [match]:
            name = path.relative_to(settings.root)
            hidden = any(fnmatchcase(part, mask) for part in name.parts for mask in excluded)
            if path.is_file() and not hidden:
                yield str(name), (0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes())


def _settings_files(build: Build) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """The settings of pip for build stages; without any, an empty file, so that the COPY always works."""
    options = {name.removeprefix("PIP_").lower().replace("_", "-"): value for name, value in build.index.items()}
    bundle = b""
    if build.ca_bundle:
        try:
            bundle = build.ca_bundle.read_bytes()
        except OSError as error:
            raise ConfigError(f"the CA bundle {build.ca_bundle} cannot be read: {error.strerror}") from error
        options["cert"] = _CA_IN_BUILD
    lines = ["[global]", *(f"{name} = {value}" for name, value in options.items())] if options else []
    yield f"{SETTINGS_FOLDER}/pip.conf", (0o644, "".join(f"{line}\n" for line in lines).encode())
    yield f"{SETTINGS_FOLDER}/ca.pem", (0o644, bundle)
