"""The host's preparation of grants: real keys from the environment, and a placeholder for each."""

from __future__ import annotations

from collections.abc import Mapping

from sealtape.broker.wire import KeyedGrant
from sealtape.config import Grant, Settings
from sealtape.errors import ConfigError
from sealtape.placeholder import placeholder_for

# A shorter key would be found everywhere, and taken out of every answer.
SHORTEST_KEY = 8


def prepare_grants(settings: Settings, environ: Mapping[str, str]) -> tuple[KeyedGrant, ...]:
    """The grants with their keys. Raises `ConfigError` that names every key that is missing or no key."""
    placeholders: dict[str, str] = {}
    missing: list[Grant] = []
    prepared = []
    for grant in settings.grants:
        if grant.key_env is None:
            prepared.append(KeyedGrant(grant=grant))
        elif (key := environ.get(grant.key_env, "").strip()) and key != placeholder_for(grant.key_env, fresh=False):
            _check(grant, key)
            # Two grants may share a key; its variable holds one placeholder.
            placeholder = placeholders.setdefault(grant.key_env, placeholder_for(grant.key_env, fresh=True))
            prepared.append(KeyedGrant(grant=grant, key=key, placeholder=placeholder))
        else:
            missing.append(grant)
    if missing:
        needs = "\n".join(f"the grant {grant.name!r} needs {grant.key_env}, which is not set" for grant in missing)
        first = missing[0]
        tip = f"export {first.key_env}=… before recording, or take [tool.sealtape.grants.{first.name}] out"
        raise ConfigError(needs, tip=tip)
    return tuple(prepared)


def _check(grant: Grant, key: str) -> None:
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{grant.key_env}, the key of the grant {grant.name!r}, has characters that no key has")
    if len(key) < SHORTEST_KEY:
        raise ConfigError(
            f"{grant.key_env}, the key of the grant {grant.name!r}, has {len(key)} characters; "
            f"fewer than {SHORTEST_KEY} cannot be kept out of recordings",
            tip="a server that takes any key needs none here: take key_env out of the grant",
        )
