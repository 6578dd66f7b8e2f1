"""Takes pictures of the recorded race: docs/images/page.png and race.gif for the README, and the
card of links to the page, specdemo/server/page/static/card.png.

`python tools/page_pictures.py`, after tools/page_record.py. Needs Pillow.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from specdemo.host.server_process import started

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CARD = ROOT / "specdemo" / "server" / "page" / "static" / "card.png"
SETTLED = "window.specdemo?.race?.trace && document.querySelector('.sd-plot').dataset.run"
WIDTH = 800
FRAME = 0.2
"""Seconds between two frames of the animation."""
BEGIN = """() => {
  const { motion } = window.specdemo.race;
  motion.choose("slow");
  clearInterval(motion.timer);
  motion.view = 0;
}"""
ADVANCE = """seconds => {
  const { race } = window.specdemo, { motion } = race, view = motion.view + seconds * motion.rate;
  race.show(view < race.duration ? view : Infinity);
  return view < race.duration;
}"""


def main() -> None:
    looks = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"}
    with (
        started("app.py", HF_HUB_OFFLINE="1", SPECDEMO_PAIR="embedded") as server,
        sync_playwright() as run,
    ):
        browser = run.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(**looks)
        page.goto(f"{server.url}/?speed=steps")
        page.set_default_timeout(120_000)
        page.wait_for_function(SETTLED)
        page.wait_for_selector(".sd-chart .scatterlayer")
        page.get_by_text("Ready: ").wait_for()
        page.mouse.move(0, 0)
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / "page.png")
        with page.expect_download() as picture:
            page.get_by_role("button", name="PNG", exact=True).click()
        write_card(picture.value.path().read_bytes())
        # The slow motion, a frame at a time: taking a picture takes longer than a frame.
        page.set_viewport_size({"width": 1280, "height": 1400})
        clip = page.locator(".sd-shown").bounding_box()
        box = page.locator(".sd-answers").bounding_box()
        clip["height"] = box["y"] + box["height"] - clip["y"]
        page.evaluate(BEGIN)
        shots = []
        while page.evaluate(ADVANCE, FRAME if shots else 0.0):
            shots.append(page.screenshot(clip=clip))
        shots.append(page.screenshot(clip=clip))
    write_gif(shots)


def write_card(shot: bytes) -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(shot)).convert("RGB").resize((1200, 630))
    image.quantize(64).save(CARD, optimize=True)


def write_gif(shots: list[bytes]) -> None:
    """Writes frames as one animation; the last one is shown for 3 s."""
    from PIL import Image

    frames = []
    for shot in shots:
        image = Image.open(io.BytesIO(shot)).convert("RGB")
        height = round(image.height * WIDTH / image.width)
        frames.append(image.resize((WIDTH, height), Image.Resampling.LANCZOS))
    palette = frames[-1].quantize(96, dither=Image.Dither.NONE)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    path = IMAGES / "race.gif"
    looks = {
        "duration": [round(1000 * FRAME)] * (len(frames) - 1) + [3000],
        "loop": 0,
        "optimize": True,
    }
    frames[0].save(path, save_all=True, append_images=frames[1:], **looks)
    print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
