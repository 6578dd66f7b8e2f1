"""Takes the README's pictures of the recorded race: docs/images/page.png and race.gif.

`python tools/page_pictures.py`, after tools/page_record.py. Needs Pillow.
"""

from __future__ import annotations

import io

from page_measure import ROOT, chromium, open_page, served

IMAGES = ROOT / "docs" / "images"
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
    with served() as server, chromium() as browser:
        page = open_page(
            browser.new_context(**looks), server.url, max_new_tokens=120, speed="steps"
        )
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / "page.png")
        # The slow motion, a frame at a time: taking a picture takes longer than a frame.
        clip = page.locator(".sd-race").bounding_box()
        clip["height"] = 800 - clip["y"]
        page.evaluate(BEGIN)
        shots = []
        while page.evaluate(ADVANCE, FRAME if shots else 0.0):
            shots.append(page.screenshot(clip=clip))
        shots.append(page.screenshot(clip=clip))
    write_gif(shots)


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
