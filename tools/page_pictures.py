"""Takes the README's pictures from a real run of the page: docs/images/page.png and race.gif.

`python tools/page_pictures.py`, on a quiet machine. Needs Pillow.
"""

from __future__ import annotations

import io
import time

from page_measure import ROOT, chromium, open_page, race, served

IMAGES = ROOT / "docs" / "images"
WARM_UP = "Name three colours of the rainbow", "Why is the sky blue?"
QUESTION = "Write a Python function that reverses a string"
WIDTH = 800
FRAME = 0.125
"""Seconds between two frames of the animation."""


def main() -> None:
    looks = {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"}
    with served() as server, chromium() as browser:
        page = open_page(browser.new_context(**looks), server.url, max_new_tokens=160)
        for question in (*WARM_UP, QUESTION):
            race(page, question)
        page.evaluate("scrollTo(0, 0)")
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "page.png")
        # The replay of that run at its true speed: taking pictures does not slow the run down.
        clip = page.locator(".sd-race").bounding_box()
        clip["height"] = 800 - clip["y"]
        shots = []
        page.evaluate("window.specdemo.race.start()")
        since, playing = time.monotonic(), True
        while playing:
            playing = page.evaluate("window.specdemo.race.playing")
            shots.append((time.monotonic() - since, page.screenshot(clip=clip)))
            time.sleep(max(0.0, FRAME * len(shots) - (time.monotonic() - since)))
    write_gif(shots)


def write_gif(shots: list[tuple[float, bytes]]) -> None:
    """Writes (seconds, frame) pairs as one animation; the last frame is shown for 3 s."""
    from PIL import Image

    frames = []
    for _, shot in shots:
        image = Image.open(io.BytesIO(shot)).convert("RGB")
        height = round(image.height * WIDTH / image.width)
        frames.append(image.resize((WIDTH, height), Image.Resampling.LANCZOS))
    palette = frames[-1].quantize(96, dither=Image.Dither.NONE)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [moment for moment, _ in shots]
    pauses = [max(20, round(1000 * (b - a))) for a, b in zip(times, times[1:], strict=False)]
    path = IMAGES / "race.gif"
    looks = {"duration": [*pauses, 3000], "loop": 0, "optimize": True}
    frames[0].save(path, save_all=True, append_images=frames[1:], **looks)
    print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
