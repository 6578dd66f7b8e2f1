"""Takes pictures of the recorded race: docs/images/page.png and race.gif for the README, and the
card of links to the page, specdemo/server/page/static/card.png.

`python tools/page_pictures.py`, after tools/page_record.py. Needs Pillow.
"""

from __future__ import annotations

import html
import io
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from specdemo.machine.server_process import started

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CARD = ROOT / "specdemo" / "server" / "page" / "static" / "card.png"
SETTLED = "window.specdemo?.race?.trace && document.querySelector('.sd-plot').dataset.run"
WIDTH = 800
FRAME = 0.2
"""Seconds between two frames of the animation."""
BEGIN = "() => { window.specdemo.race.motion.choose('1'); window.specdemo.race.motion.jump(0); }"
ADVANCE = """seconds => {
  const { race } = window.specdemo, view = race.motion.view + seconds;
  race.show(view < race.duration ? view : Infinity);
  return view < race.duration;
}"""
CARD_PAGE = """<body style="margin:0;width:1200px;height:630px;box-sizing:border-box;padding:72px;
background:#fff;color:#16202c;font:32px/48px system-ui,sans-serif">
<b style="font-size:56px;line-height:72px">Speculative decoding on OpenVINO</b><br>
The same answer, sooner: measured as you watch.
<div style="font-size:160px;line-height:192px;font-weight:750">FIGURE</div>
<div style="background:#0072b2;height:24px;width:SHARE%"></div>
<div style="background:#64748b;height:24px;margin:16px 0"></div>
<span style="color:#4a5867;font-size:24px">ORIGIN</span></body>"""


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
        trace = page.evaluate("window.specdemo.race.trace")
        figure = page.locator(".sd-headline").inner_text()
        # The race at real time, a frame at a time: taking a picture takes longer than a frame.
        clip = page.locator(".sd-panes").bounding_box()
        page.evaluate(BEGIN)
        shots = []
        while page.evaluate(ADVANCE, FRAME if shots else 0.0):
            shots.append(page.screenshot(clip=clip))
        shots.append(page.screenshot(clip=clip))
        write_gif(shots)
        summary, pair = trace["summary"], trace["pair"]
        share = 100 * summary["decode_seconds"] / summary["baseline_decode_seconds"]
        origin = f"{pair['target']} with {pair['draft']}, {trace['machine']}"
        card = CARD_PAGE.replace("FIGURE", figure).replace("SHARE", f"{share:.0f}")
        page.set_viewport_size({"width": 1200, "height": 630})
        page.set_content(card.replace("ORIGIN", html.escape(origin)))
        write_card(page.screenshot())


def write_card(shot: bytes) -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(shot)).convert("RGB")
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
