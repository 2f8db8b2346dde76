"""What others build, cite and archive: the container recipe, CITATION.cff and .zenodo.json."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import scatlas

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Keys of the Citation File Format 1.2.0, and those that it needs.
CFF_KEYS = {
    *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi"),
    *("identifiers", "keywords", "license", "license-url", "message", "preferred-citation"),
    *("references", "repository", "repository-artifact", "repository-code", "title", "type"),
    *("url", "version"),
}
CFF_NEEDED = {"authors", "cff-version", "message", "title"}
# Keys that Zenodo needs of software.
ZENODO_NEEDED = {"title", "upload_type", "description", "creators", "license", "access_right"}


def cff() -> dict:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def zenodo() -> dict:
    return json.loads((ROOT / ".zenodo.json").read_text())


def test_citation_has_the_keys_of_its_format() -> None:
    assert CFF_NEEDED <= cff().keys() <= CFF_KEYS
    assert cff()["cff-version"] == "1.2.0"
    assert cff()["type"] == "software"
    assert all({*author} & {"name", "family-names"} for author in cff()["authors"])


def test_zenodo_citation_and_package_agree() -> None:
    assert zenodo().keys() >= ZENODO_NEEDED
    assert zenodo()["upload_type"] == "software"
    names = [author["name"] for author in PROJECT["authors"]]
    assert [creator["name"] for creator in zenodo()["creators"]] == names
    assert [author["name"] for author in cff()["authors"]] == names
    assert zenodo()["title"] == cff()["title"]
    assert zenodo()["title"].partition(":")[0] == PROJECT["name"]
    assert zenodo()["description"] == cff()["abstract"] == PROJECT["description"]
    assert zenodo()["license"] == cff()["license"] == PROJECT["license"]
    assert zenodo()["keywords"] == cff()["keywords"] == PROJECT["keywords"]


def test_a_release_needs_the_tag_of_its_version(tmp_path: Path) -> None:
    version, changes = scatlas.__version__, tmp_path / "CHANGELOG.md"
    for name in (".ci/release", "src/scatlas/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changes.write_text("## Unreleased\n")

    def git(words: str) -> None:
        options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(
            ["git", *options, *words.split()], cwd=tmp_path, check=True, capture_output=True
        )

    def refusal() -> str:
        command = [tmp_path / ".ci/release", "agree"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == bool(done.stderr)
        return done.stderr

    git("init")
    git("add .")
    git("commit -m first")
    assert refusal() == ""  # no tag: a rehearsal
    git("tag v99.1")
    assert f"the tag is v99.1, but src/scatlas/_version.py has {version}: " in refusal()
    git("tag -d v99.1")
    git(f"tag v{version}")
    assert f"CHANGELOG.md has no section ## {version}: " in refusal()
    changes.write_text(f"## {version} - 2030-01-01\n")
    assert "the checkout has changes: " in refusal()
    git("commit -am changes")
    git(f"tag -f v{version}")
    assert refusal() == ""


def test_issue_forms_ask_for_version_config_and_log() -> None:
    forms = {path.stem: path.read_text() for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir()}
    assert forms.keys() == {"bug", "question"}
    for text in forms.values():
        fields = [part for part in yaml.safe_load(text)["body"] if part["type"] != "markdown"]
        assert all(field["id"] and field["attributes"]["label"] for field in fields)
        assert [
            word for word in ("scatlas --version", "atlas.yaml", "log") if word not in text
        ] == []


def instructions() -> list[tuple[str, str]]:
    """Instructions of the container recipe, each with its arguments on one line."""
    text = (ROOT / "Containerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line.strip()]


def arguments(name: str) -> list[str]:
    return [words for instruction, words in instructions() if instruction == name]


def test_the_container_starts_from_one_version_of_a_base_image() -> None:
    bases = {words.split()[0] for words in arguments("FROM")}
    assert len(bases) == 1
    (base,) = bases
    # A name and a version with numbers; a host would have a dot or a port before a slash.
    assert re.fullmatch(r"[a-z]+:\d+(\.\d+)+[\w.-]*", base)
    assert "ADD" not in dict(instructions())


def test_the_container_runs_scatlas_and_not_as_root() -> None:
    last = max(i for i, (name, _) in enumerate(instructions()) if name == "FROM")
    final = dict(instructions()[last:])
    assert final["USER"] not in {"root", "0"}
    assert json.loads(final["ENTRYPOINT"]) == [*PROJECT["scripts"]]
    assert json.loads(final["CMD"]) == ["--help"]
    assert Path(final["WORKDIR"]).is_absolute()


@pytest.mark.parametrize("command", arguments("RUN"))
def test_a_command_of_the_container_is_sound(command: str) -> None:
    subprocess.run(["sh", "-n", "-c", command], check=True)
    assert not re.search(r"\b(sudo|curl|wget|latest|apt)\s", command)
    assert "|" not in command.replace("||", "")  # sh would hide the failure of the first one
    if "apt-get install" in command:
        assert "--yes --no-install-recommends" in command
        assert command.startswith("apt-get update && ")
        assert "rm -rf /var/lib/apt/lists/*" in command
    for part in command.split("&&"):
        words = shlex.split(part)
        if words[:2] == ["pip", "install"]:
            assert {"--require-hashes", "--no-deps"} & {*words}


def test_the_container_has_the_files_of_the_wheel_and_no_others() -> None:
    copied = [
        word for words in arguments("COPY") if "--from" not in words for word in words.split()
    ]
    sources = {word for word in copied if (ROOT / word).exists() and word != "./"}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    needed = {*wheel["targets"]["wheel"]["force-include"], *wheel["targets"]["wheel"]["packages"]}
    needed |= {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    assert {name.partition("/")[0] for name in needed} == sources
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert {*kept} == sources


def test_each_lock_of_the_container_exists() -> None:
    (default,) = (words.partition("=")[2] for words in arguments("ARG"))
    named = re.findall(r"LOCK=([\w-]+)", (ROOT / "Containerfile").read_text())
    assert default in named
    assert all((ROOT / f"envs/{lock}.lock.txt").is_file() for lock in named)
