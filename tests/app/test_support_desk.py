"""The application's own tests, as a user of sealtape writes them: the recordings do the rest."""

from __future__ import annotations

import asyncio

import openai
import pytest
from support_desk import FALLBACK, Desk, Facts, headline


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize(
    ("ticket", "category"),
    [("I was charged twice this month.", "billing"), ("Do you have a shop in Vienna?", "other")],
)
def test_tickets_are_sorted(desk: Desk, ticket: str, category: str) -> None:
    assert desk.category(ticket) == category


def test_facts_are_read_although_the_model_adds_text_after_the_json(desk: Desk) -> None:
    facts = desk.facts("Order 1234 never arrived and I need it today!")
    assert facts.complete
    assert facts.order == 1234


def test_json_that_breaks_off_is_no_fact(desk: Desk) -> None:
    assert desk.facts("Order 1234 never arrived and I need it today!", limit=9) == Facts()


def test_a_reply_comes_in_pieces(desk: Desk) -> None:
    pieces = list(desk.reply("I cannot log in since yesterday."))
    assert len(pieces) > 5
    assert "".join(pieces).startswith("Sorry")


def test_the_same_reply_comes_asynchronously(desk: Desk) -> None:
    async def read() -> str:
        try:
            return "".join([piece async for piece in desk.reply_async("I cannot log in since yesterday.")])
        finally:
            await desk.aclose()

    assert asyncio.run(read()) == "".join(desk.reply("I cannot log in since yesterday."))


@pytest.mark.faults(429, 429)
def test_a_busy_provider_is_asked_again(desk: Desk) -> None:
    assert desk.category("I was charged twice this month.") == "billing"


@pytest.mark.faults(429)
def test_without_retries_a_busy_provider_is_an_error() -> None:
    with pytest.raises(openai.RateLimitError):
        Desk(max_retries=0).category("I was charged twice this month.")


def test_a_provider_that_takes_too_long_is_a_timeout() -> None:
    with pytest.raises(openai.APITimeoutError):
        Desk(timeout=0.05, max_retries=0).category("My parcel is late, and nobody answers the telephone.")


def test_the_customer_gets_a_reply_when_the_model_is_too_slow() -> None:
    assert Desk(timeout=0.05, max_retries=1).reply_or_fallback("My parcel is late again.") == FALLBACK


def test_the_customer_gets_the_models_reply(desk: Desk) -> None:
    assert desk.reply_or_fallback("Where is my parcel?") not in ("", FALLBACK)


def test_a_ticket_has_a_headline() -> None:
    assert headline("The app crashes when I open a file, and my work is lost.")
