"""The page that runs networks, in Firefox: what it shows is what Python computes.

Firefox is spoken to in its own protocol, Marionette: lengths and JSON over a socket.
"""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data import Preprocess
from vision_attn.evaluate import FilledCells, MeanFill
from vision_attn.models import ViT
from vision_attn.pages.live.report import live
from vision_attn.types import Model

NAMES = ("firefox-esr", "firefox")
STARTS_IN = 120  # seconds, at most


def firefox() -> str | None:
    """The path of Firefox, if it is here."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Session:
    """One window: each command is [0, number, name, parameters], each answer [1, number, error, result]."""

    def __init__(self, port: int):
        self.socket = connect(port)
        self.file = self.socket.makefile("rb")
        self.read()  # what it is
        self.sent = 0
        self.ask("WebDriver:NewSession", capabilities={})

    def read(self) -> Any:
        length = b""
        while (digit := self.file.read(1)) != b":":
            length += digit
        return json.loads(self.file.read(int(length)))

    def ask(self, name: str, **parameters: Any) -> Any:
        self.sent += 1
        text = json.dumps([0, self.sent, name, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self.read()
        assert error is None, error
        return result.get("value") if isinstance(result, dict) else result

    def go(self, url: str) -> None:
        self.ask("WebDriver:Navigate", url=url)

    def run(self, script: str) -> Any:
        """The result of a function's body, which sees the page's elements but not its variables."""
        return self.ask("WebDriver:ExecuteScript", script=script, args=[])

    def until(self, condition: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"return {condition}"):
            assert time.monotonic() < end, condition
            time.sleep(0.1)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        steps = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": steps}
        self.ask("WebDriver:PerformActions", actions=[keyboard])


def connect(port: int) -> socket.socket:
    end = time.monotonic() + STARTS_IN
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=STARTS_IN)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextmanager
def opened_firefox(folder: Path) -> Iterator[Session]:
    """Starts Firefox with a fresh profile in the folder, and ends it afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    (folder / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
    path = firefox()
    assert path is not None
    words = [path, "--headless", "--no-remote", "--marionette", "--profile", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            session = Session(port)
            with session.socket, session.file:
                yield session
        finally:
            process.terminate()


pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(firefox() is None, reason="needs Firefox"),
]
SIZE, GRID = (32, 48), (4, 6)
SHOWN = """return [...document.querySelectorAll(".predictions button")].map((button) => [
  button.querySelector(".name").textContent, parseFloat(button.querySelector(".share").textContent)]);"""


def shares(session: Session) -> dict[str, float]:
    """The classes on the screen with their percentages."""
    return dict(session.run(SHOWN))


def assert_shares(shown: dict[str, float], classes: list[str], logits: torch.Tensor) -> None:
    wanted = dict(zip(classes, (100 * logits.softmax(0)).tolist(), strict=True))
    assert len(shown) >= 5
    for name, share in shown.items():
        assert share == pytest.approx(wanted[name], abs=0.7 if share >= 9.9 else 0.2)


def vit() -> Model:
    """A network with opinions."""
    torch.manual_seed(0)
    network = ViT(SIZE, 8, num_classes=7, dim=24, depth=3, heads=2).eval()
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.data = 1.5 * torch.randn_like(weight) * weight.shape[1] ** -0.5
    half = (0.5, 0.5, 0.5)
    return Model(network, Preprocess(SIZE, half, half), [*"abcdefg"], network.layout(SIZE))


@torch.no_grad()
def test_firefox_sees_what_python_sees(tmp_path: Path) -> None:
    model = vit()
    noise = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((180, 100))
    file = live(model, [photo]).save(tmp_path / "page.html")
    image = model.preprocess(photo)[None]
    with opened_firefox(tmp_path / "profile") as session:
        session.go(file.as_uri())
        session.until("document.querySelectorAll('.predictions button').length >= 5")
        assert session.run("return document.querySelector('.note').textContent") == ""
        assert_shares(shares(session), model.classes, model.network(image)[0])
        session.press("x")  # covers the patch in the middle
        session.until("document.querySelector('.facts').textContent === '1 cell covered'")
        session.until("document.querySelector('.predictions h2').textContent !== 'Predicted'")
        cell = 2 * GRID[1] + 3
        order = torch.tensor([[at for at in range(24) if at != cell] + [cell]])
        wanted = FilledCells(model.network, GRID, MeanFill()).logits(image, order, [23])[0, 0]
        assert_shares(shares(session), model.classes, wanted)
