from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sealtape.sandbox.verdict import LAYERS, Check, Verdict, engine_check, probe_checks


def check(layer, name="x", *, ok=True):
    return Check(name=name, expected="e", found="f", ok=ok, closes="c", layer=layer)


def verdict(*checks):
    return Verdict(engine="docker", checks=checks)


SEALED = verdict(*(check(layer) for layer in LAYERS))


def test_the_line():
    assert SEALED.line() == "sealed   docker · no network · 1/1 probes · no key · read-only project"


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_counts(layer):
    assert SEALED.sealed
    assert not verdict(*SEALED.checks, check(layer, ok=False)).sealed


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_was_not_looked_at_is_no_proof(layer):
    assert not verdict(*(one for one in SEALED.checks if one.layer != layer)).sealed


def test_nothing_is_no_proof():
    assert not verdict().sealed
    assert verdict().line() == "not sealed   docker · 0/0 probes · nothing was probed"


def test_failures_are_named():
    failing = [check("probe", name, ok=False) for name in ("a", "b", "c", "d", "e")]
    broken = verdict(*SEALED.checks, *failing)
    assert broken.line() == "not sealed   docker · 1/6 probes · a, b, c and 2 more"
    assert list(broken.failures) == failing


def test_json():
    report = json.loads(json.dumps(SEALED.to_json()))
    assert report["sealed"] is True
    assert report["line"] == SEALED.line()
    assert report["checks"][0] == {**vars(SEALED.checks[0])}


def test_a_probe_must_say_true():
    result = {"name": "n", "expected": "e", "found": "f", "ok": "true", "closes": "c"}
    (made,) = probe_checks([result])
    assert not made.ok
    assert probe_checks([{**result, "ok": True}]) == [replace(made, ok=True)]


def test_an_engine_check_compares():
    assert engine_check("network", "none", "none", "c").ok
    assert not engine_check("network", "none", "host", "c").ok
