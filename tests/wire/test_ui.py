"""The page at /ui in a real browser against the demo model: the numbers move under load, a chat streams an answer."""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest

from tests.helpers.browser import Page, browser_page, find_browser
from tests.wire.live import live_server

BROWSER = find_browser()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")]
KEY = "a-key-of-the-test"
PICTURES = os.environ.get("RADIXLM_PICTURES")  # a folder for pictures of the page, for people to look at
SYSTEM = (
    "You are a patient support agent of a telephone company. Answer briefly, and ask for the customer number first."
)
LOOKS = {"desktop-light": (1280, 900, False), "desktop-dark": (1280, 900, True), "phone-dark": (390, 844, True)}


async def load(url: str, requests: int) -> None:
    """Chats with one beginning and different ends; one of them is stopped."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def one(number: int) -> None:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"I am customer {number}."}]
            body = {"model": "m", "messages": messages, "max_tokens": 12, "stream": True}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                assert response.status == 200
                if number:
                    await response.read()

        await asyncio.gather(*(one(number) for number in range(requests)))


async def enter_key(page: Page, key: str) -> None:
    await page.until("document.getElementById('key-dialog').open")
    await page.run(
        f"document.getElementById('key').value = {key!r}; document.querySelector('#key-form button').click()"
    )


async def look_around(page: Page, name: str) -> None:
    """Nothing is wider than the window, in any look; take pictures where they are wanted."""
    for look, (width, height, dark) in LOOKS.items():
        await page.look(width, height, dark, phone=width < 500)
        await page.run("scrollTo(0, 0)")
        await asyncio.sleep(1.2 if PICTURES else 0.1)
        assert await page.run("document.documentElement.scrollWidth <= innerWidth"), f"{name}, {look}"
        if PICTURES:
            await page.picture(Path(PICTURES) / f"{name}-{look}.png", whole=name == "dashboard")
    await page.look(1280, 900)


async def dashboard(page: Page, url: str) -> None:
    await page.open(url + "/ui")
    await enter_key(page, "wrong")
    await page.until("document.getElementById('key-error').textContent.includes('does not accept')")
    await enter_key(page, KEY)
    await page.until("document.getElementById('status').textContent == 'ready'")
    assert await page.run("document.querySelectorAll('#tree .node').length") == 0
    await load(url, 10)
    await page.until("document.querySelectorAll('#tree .node').length > 3")
    await page.until("document.querySelectorAll('#timeline rect.decode').length >= 9")
    await page.until("document.querySelectorAll('#timeline .failed').length == 1")
    assert "support agent" in await page.run("document.querySelector('#tree .node').getAttribute('aria-label')")
    assert await page.run(
        "[...document.querySelectorAll('#latency td')].every((cell) => / m?s$/.test(cell.textContent))"
    )
    assert await page.run("document.querySelector('#c-throughput path') !== null")
    await page.run("document.querySelector('#tree .node').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert SYSTEM[:20] in await page.run("document.getElementById('tree-detail').textContent")


async def chat(page: Page) -> None:
    await page.run("document.getElementById('tab-chat').click()")
    await page.run("document.querySelector('[name=max_tokens]').value = 24")
    await page.run("document.querySelector('[name=temperature]').value = 0")
    for turn, text in enumerate(("What is the capital of France?", "Say <b>hello</b> <img src=x onerror=alert(1)>.")):
        await page.run(f"document.getElementById('prompt').value = {text!r}; document.getElementById('send').click()")
        await page.until(f"document.querySelectorAll('.assistant .body')[{turn}]?.textContent.length > 3")
        await page.until(f"document.querySelectorAll('.timing').length == {turn + 1}")
    bodies = "[...document.querySelectorAll('.message .body')].map((body) => body.textContent)"
    said = await page.run(bodies)
    assert "Paris" in said[1] and "<b>hello</b>" in said[2]
    assert await page.run("document.querySelectorAll('#messages b, #messages img').length") == 0
    assert "first token" in await page.run("document.querySelector('.timing').textContent")
    await look_around(page, "chat")
    await page.run("document.getElementById('reset').click()")
    assert await page.run("document.querySelectorAll('.message').length") == 0


def test_the_page() -> None:
    async def visit(url: str) -> None:
        assert BROWSER is not None
        async with browser_page(BROWSER) as page:
            await page.look(1280, 900)
            await dashboard(page, url)
            await look_around(page, "dashboard")
            await chat(page)
            assert await page.run("sessionStorage.getItem('radixlm-key')") == KEY
            refused = [problem for problem in page.problems if "401" not in problem]  # before there was a key
            assert refused == []

    with live_server("demo", "--api-key", KEY, "--mem-fraction-static", "0.1") as server:
        asyncio.run(visit(server.url))
