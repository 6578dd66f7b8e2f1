"""Takes the README's pictures from a real run of the page: docs/images/page.png and the animation race.gif.

`python tests/tools/page_pictures.py [--question TEXT] [--tokens N]`, on a quiet machine. Needs a Chromium and Pillow."""

from __future__ import annotations

import argparse
import io
import shutil
import time

from page_measure import ROOT, served

IMAGES = ROOT / "docs" / "images"
WIDTH = 800
FRAME = 0.125
"""Seconds between two frames of the animation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--question", default="Explain the difference between fission and fusion")
    parser.add_argument("--tokens", default="160")
    options = parser.parse_args()

    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with served() as (url, _), sync_playwright() as run:
        browser = run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1180}, color_scheme="light")
        page.set_default_timeout(180_000)
        page.goto(f"{url}?max_new_tokens={options.tokens}")
        page.wait_for_function("window.specdemo && window.specdemo.link().includes('max_new_tokens')")

        def race(question: str) -> None:
            before = page.evaluate("window.specdemo.stage.run")
            page.fill("#sd-question textarea", question)
            page.get_by_role("button", name="Run", exact=True).click()
            page.wait_for_function("before => { const stage = window.specdemo.stage;"
                                   " return stage.run !== before && stage.root.dataset.settled === stage.run }",
                                   arg=before)

        for warm_up in ("Name three colours of the rainbow", "Why is the sky blue?"):
            race(warm_up)
        race(options.question)
        page.evaluate("scrollTo(0, 0)")
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "page.png")
        # The animation is the replay of that run at its true speed, so taking pictures does not slow the run down.
        box = page.locator(".sd-race").bounding_box()
        end = page.locator(".sd-answers").bounding_box()
        clip = {"x": box["x"], "y": box["y"], "width": box["width"],
                "height": min(end["y"] + 250, 1180) - box["y"]}
        shots = []
        page.evaluate("document.querySelector('.sd-play').click()")
        since = time.monotonic()
        while page.evaluate("window.specdemo.stage.playing"):
            shots.append((time.monotonic() - since, page.screenshot(clip=clip)))
            time.sleep(max(0.0, FRAME * len(shots) - (time.monotonic() - since)))
        shots.append((time.monotonic() - since, page.screenshot(clip=clip)))
        browser.close()
    write_gif(shots)


def write_gif(shots: list[tuple[float, bytes]]) -> None:
    """Frames with the moments at which they were taken, as one small animation; the last stays for three seconds."""
    from PIL import Image

    height = None
    frames = []
    for _, shot in shots:
        image = Image.open(io.BytesIO(shot)).convert("RGB")
        height = height or round(image.height * WIDTH / image.width)
        frames.append(image.resize((WIDTH, height), Image.Resampling.LANCZOS))
    palette = frames[-1].quantize(96, dither=Image.Dither.NONE)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [moment for moment, _ in shots]
    lasting = [max(20, round(1000 * (b - a))) for a, b in zip(times, times[1:], strict=False)] + [3000]
    path = IMAGES / "race.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=lasting, loop=0, optimize=True)
    print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
