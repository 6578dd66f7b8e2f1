"""The lines of nginx in the guide, in front of a server with toy models."""

import re
import shutil
import subprocess

import httpx
import openai
import pytest
from conftest import ROOT
from helpers import served, until
from toy_session import ToySession

from specdemo.server.web_server import bound_socket

CONFIG = """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {zone}
    server {{
        listen 127.0.0.1:{port};
        {location}
    }}
}}
"""


@pytest.fixture
def proxied(tmp_path):
    """The URL of nginx in front of the API, as the guide says."""
    if not (nginx := shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")):
        pytest.skip("nginx is not installed")
    guide = (ROOT / "docs" / "guide" / "serve.md").read_text("utf-8")
    [zone] = re.findall(r"`(limit_req_zone .*;)`", guide)
    [location] = re.findall(r"```nginx\n(.*?)```", guide, re.DOTALL)
    with bound_socket("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    with ToySession("One two three four ") as toy, served(toy, max_new_tokens=200) as server:
        location = location.replace("http://127.0.0.1:8000", server.url)
        config = CONFIG.format(folder=tmp_path, zone=zone, location=location, port=port)
        (tmp_path / "nginx.conf").write_text(config)
        with subprocess.Popen([nginx, "-p", tmp_path, "-c", tmp_path / "nginx.conf"]) as process:
            url = f"http://127.0.0.1:{port}"
            try:
                until(lambda: process.poll() is not None or answers(url))
                yield url, toy
            finally:
                process.terminate()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def test_streams_and_ids_pass_the_proxy_and_floods_do_not(proxied):
    url, toy = proxied
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    toy.pause(5)
    asked = {"model": "toy target", "messages": [{"role": "user", "content": "Hi"}]}
    stream = client.chat.completions.create(**asked, stream=True, max_tokens=40)
    assert re.fullmatch(r"\w{32}", stream.response.headers["x-request-id"])
    begun = iter(stream)
    next(begun)  # before the answer can end
    toy.resume()
    assert [*begun][-1].choices[0].finish_reason
    statuses = [httpx.get(f"{url}/v1/models").status_code for _ in range(40)]
    assert statuses[0] == 200 and statuses[-1] == 429 and statuses.count(200) <= 25
    assert answers(url) is False
