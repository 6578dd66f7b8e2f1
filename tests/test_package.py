"""What is installed: requirements, the wheel and the workflows."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from packaging.requirements import Requirement

from specdemo import cli
from specdemo.errors import BadInput

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXAMPLES = ROOT / "examples"
FILES = {"": "requirements.txt"} | {
    extra: f"requirements-{extra}.txt" for extra in PROJECT["optional-dependencies"]
}


def declared(extra: str) -> dict[str, Requirement]:
    """The requirements of an extra by name; "" for those of the package itself."""
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    requirements = {requirement.name: requirement for requirement in map(Requirement, lines)}
    if own := requirements.pop("specdemo", None):
        for extra in own.extras:
            requirements |= declared(extra)
    return requirements


def pinned(file: str) -> dict[str, str]:
    """The versions that a requirements file pins, by name, without those of requirements.txt."""
    text = (ROOT / file).read_text()
    versions = dict(re.findall(r"^([\w-]+)\S*==(\S+)", text, re.M))
    for other in set(re.findall(r"^-r (\S+)", text, re.M)) - {FILES[""]}:
        versions |= pinned(other)
    return versions


@pytest.mark.parametrize("extra", FILES)
def test_requirements_pin_a_version_of_everything_that_pyproject_bounds(extra):
    wanted, pins = declared(extra), pinned(FILES[extra])
    assert set(pins) == {name for name, requirement in wanted.items() if requirement.specifier}
    assert [name for name, pin in pins.items() if pin not in wanted[name].specifier] == []


def test_the_api_alone_has_the_versions_of_the_page_and_needs_none_of_its_packages():
    others = pinned("requirements.txt") | pinned("requirements-space.txt")
    alone = pinned("requirements-api.txt")
    assert alone.items() <= others.items() and not {"gradio", "plotly", "pandas"} & alone.keys()
    program = (
        "import sys; sys.modules |= dict.fromkeys(('gradio', 'plotly', 'pandas', 'orjson', 'ray'));"
        "import specdemo.commands.serve, specdemo.server.openai_api, specdemo.runs.session;"
        "import specdemo.text.grammar, specdemo.convert.exporting, specdemo.engine.engine"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_an_editable_install():
    """They follow a path, and not the hook that is the default."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["distutils"]["editable_wheel"]["mode"] == "compat"
    assert (ROOT / "specdemo" / "py.typed").is_file()


def test_what_comes_with_gradio_is_installed():
    unpinned = (name for name, required in declared("").items() if not required.specifier)
    assert all(map(version, unpinned))


def test_actions_are_pinned_by_hash():
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for used in re.findall(r"uses: (.*)", file.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", used), f"{file.name}: {used}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The programs of an environment outside the checkout in which the built wheel is installed.

    The tests run offline: setuptools builds as pip would ask it to, and the packages that specdemo
    depends on come from this environment too."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"  # a build leaves files beside its sources
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "specdemo", source / "specdemo", ignore=ignored)
    files = {str(file.relative_to(source)) for file in source.glob("specdemo/**/*.*")}
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    [wheel] = folder.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name}
    assert packed == files
    venv.create(folder / "clean")
    python = folder / "clean" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    [packages] = (folder / "clean").glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"])
    return python.parent


def run(installed: Path, program: str, *arguments: str) -> str:
    """The output of an installed program, run outside the checkout."""
    folder = installed.parent
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed / program, *arguments], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_its_command_answers(installed, embedded_pair):
    code = "import specdemo; print(specdemo.__file__, specdemo.__version__)"
    path, version = run(installed, "python", "-c", code).split()
    assert Path(path).is_relative_to(installed.parent)
    assert run(installed, "specdemo", "--version").split()[1] == version
    options = ("--pair", "embedded", "--max-new-tokens", "8")
    answer = run(installed, "specdemo", "run", "Name a colour.", *options)
    assert len(answer.split()) >= 2


def kubernetes(kind: str) -> dict:
    """What the example for Kubernetes specifies for the object of a kind."""
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    return {document["kind"]: document["spec"] for document in documents}[kind]


def serve_configs() -> list[dict]:
    """The configurations of Ray Serve among the examples, one of them within a RayService."""
    own = yaml.safe_load((EXAMPLES / "serve_config.yaml").read_text())
    return [own, yaml.safe_load(kubernetes("RayService")["serveConfigV2"])]


def test_the_examples_for_containers_name_options_of_serve(monkeypatch):
    pod = kubernetes("Deployment")["template"]["spec"]
    command = re.search("^CMD (.*)$", (EXAMPLES / "Containerfile").read_text(), re.MULTILINE)
    served = Mock()
    monkeypatch.setattr("specdemo.commands.serve.serve_locally", served)
    for arguments in (json.loads(command[1]), pod["containers"][0]["args"]):
        assert cli.main(arguments) == 0
    for options in (call.args[0] for call in served.call_args_list):
        assert options.host == "0.0.0.0" and options.log_format == "json"
        assert options.drain_seconds < pod["terminationGracePeriodSeconds"]


@pytest.mark.slow
@pytest.mark.parametrize("config", serve_configs())
def test_the_examples_for_ray_serve_are_what_ray_and_the_application_read(config):
    from ray.serve.schema import ServeDeploySchema

    from specdemo.server import ray

    [application] = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == "specdemo.server.ray:app"
    assert ray.app(application.args)
    with pytest.raises(BadInput, match="ongoing"):
        ray.app(application.args | {"ongoing": 8})
