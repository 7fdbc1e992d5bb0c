from __future__ import annotations

import importlib

import pytest

import sealtape


@pytest.fixture(params=["httpx", "httpx2"])
def lib(request):
    return importlib.import_module(request.param)


def contexts(lib, **options):
    """The TLS contexts of two clients that are made one after the other."""
    with lib.Client(**options) as one, lib.Client(**options) as two:
        return one._transport._pool._ssl_context, two._transport._pool._ssl_context


def test_in_replay_clients_share_one_tls_context(lib, tmp_path):
    with sealtape.session(mode="replay", cassettes=tmp_path):
        one, two = contexts(lib)
        assert one is two
        plain, _ = contexts(lib, verify=False)
        assert plain is not one


def test_where_calls_are_made_each_client_has_its_own(lib, tmp_path):
    with sealtape.session(mode="record", cassettes=tmp_path):
        one, two = contexts(lib)
        assert one is not two
