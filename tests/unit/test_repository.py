"""The repository as people and tools expect it: files, locks, floors of the package, API habits."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "scatlas"
LOCKS = ["build", "cpu", "test", "test-scanpy112", "gpu-cu12", "gpu-cu13"]
# The extras that each lock serves.
EXTRAS = {
    "cpu": ["workflow"],
    "test": ["test"],
    "test-scanpy112": ["test"],
    "gpu-cu12": ["workflow", "gpu-cu12"],
    "gpu-cu13": ["workflow", "gpu-cu13"],
}
# `base` runs the script of `atlas`.
RULES = {
    rule
    for file in (ROOT / "workflow/rules").glob("*.smk")
    for rule in re.findall(r"^(?:rule|checkpoint) (\w+):", file.read_text(), re.MULTILINE)
} - {"base"}


@functools.cache
def repository_files() -> list[Path]:
    """Files that are, or would be, committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing tells its files from what runs left behind")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in files if path.is_file() and not path.is_symlink()]


@functools.cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(extras: list[str]) -> dict[str, Requirement]:
    """Direct requirements of the package with ``extras``, which may name each other."""
    found = {}
    texts = list(project()["dependencies"])
    for extra in extras:
        texts += project()["optional-dependencies"][extra]
    for requirement in map(Requirement, texts):
        if requirement.name == project()["name"]:
            found |= requirements(sorted(requirement.extras))
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


@functools.cache
def locked(lock: str) -> dict[str, tuple[Requirement, int]]:
    """Each requirement of a lock by name, with the number of its hashes."""
    text = (ROOT / "envs" / f"{lock}.lock.txt").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        head, *hashes = line.split("--hash=sha256:")
        requirement = Requirement(head)
        assert canonicalize_name(requirement.name) not in found, (
            f"{requirement.name} twice in {lock}"
        )
        found[canonicalize_name(requirement.name)] = (requirement, len(hashes))
    return found


def locked_version(lock: str, name: str) -> str:
    (specifier,) = locked(lock)[canonicalize_name(name)][0].specifier
    assert specifier.operator == "=="
    return specifier.version


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        ".ci/run",
        ".github/workflows/ci.yml",
        ".pre-commit-config.yaml",
        ".snakemake-workflow-catalog.yml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "Snakefile",
        "config/README.md",
        "config/brain-1.3m.yaml",
        "config/cell-atlas-11m.yaml",
        "config/config.yaml",
        "config/demo.yaml",
        "config/tahoe-100m.yaml",
        "pyproject.toml",
        *(f"scripts/{rule}.py" for rule in sorted(RULES)),
        *(f"envs/{lock}.lock.txt" for lock in LOCKS),
        *(f"envs/{environment}.yaml" for environment in ("cpu", "gpu-cu12", "gpu-cu13")),
    ],
)
def test_the_files_people_look_for_are_there(name):
    assert (ROOT / name).is_file()


def test_no_large_file():
    large = [path for path in repository_files() if path.stat().st_size > 1_000_000]
    assert large == []


def test_no_machine_path_and_no_registry_host():
    hosts = [
        "py" + "pi.org",
        "python" + "hosted",
        "npm" + "js",
        "deb." + "debian",
        "anaconda" + ".org",
    ]
    unwanted = re.compile(
        r"(?<![\w.}-])/(?:work|root|home|Users)/|" + "|".join(map(re.escape, hosts)), re.IGNORECASE
    )
    found = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # a picture
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in unwanted.finditer(text)]
    assert found == []


def test_ci_covers_the_pythons_that_environments_are_made_with():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    covered = ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    preferred = re.findall(r"python(3\.\d+)\b", _loop_line(ROOT / "envs/create.sh"))
    assert sorted(preferred) == sorted(covered)
    assert project()["requires-python"] == f">={min(covered)}"


def test_ci_runs_the_lowest_and_the_newest_versions():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    tried = {
        entry["resolution"] for entry in ci["jobs"]["versions"]["strategy"]["matrix"]["include"]
    }
    assert (
        tried
        == {"lowest-direct", "highest"}
        == set(
            re.findall(
                r"^#   \.ci/versions ([\w-]+)", (ROOT / ".ci/versions").read_text(), re.MULTILINE
            )
        )
    )
    # Snakemake refuses older versions itself, with a sentence.
    (needed,) = re.findall(
        r'^min_version\("(.+)"\)', (ROOT / "Snakefile").read_text(), re.MULTILINE
    )
    assert f"snakemake[reports]>={needed}" in project()["optional-dependencies"]["workflow"]


def _loop_line(script: Path) -> str:
    (line,) = re.findall(r"^\s*for name in (python.*); do$", script.read_text(), re.MULTILINE)
    return line


# --- dependencies and locks ----------------------------------------------------------------------


def test_each_dependency_says_why():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    texts = [*project()["dependencies"]]
    for extra in project()["optional-dependencies"].values():
        texts += [text for text in extra if not text.startswith(f"{project()['name']}[")]
    reasoned = {match[1] for line in lines if (match := re.match(r'\s*"([^"]+)",?\s+#\s*\w', line))}
    silent = [text for text in texts if text not in reasoned]
    assert silent == [], "write the reason as a comment on the dependency's line"


def test_each_import_is_declared():
    """An environment of the declared packages alone, as conda's, has to be enough."""
    declared = {
        canonicalize_name(Requirement(text).name)
        for extra in ("embed", "plot", "skmisc", "workflow", "storage", "gpu-cu12")
        for text in [*project()["dependencies"], *project()["optional-dependencies"][extra]]
    }
    # Those of the GPU are not installed where there is none.
    on_gpus = {"cupy": ["cupy-cuda12x"], "cupyx": ["cupy-cuda12x"], "rmm": ["rmm-cu12"]}
    on_gpus |= {"dask_cuda": ["dask-cuda"], "distributed": ["distributed"]}
    provided = packages_distributions() | on_gpus
    missing = {}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                continue
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                providers = {canonicalize_name(name) for name in provided.get(top, [])}
                if top != PACKAGE.name and not providers & declared:
                    missing.setdefault(top, path.relative_to(ROOT).as_posix())
    assert missing == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_each_locked_package_has_a_version_and_hashes(lock):
    assert len(locked(lock)) >= 3
    for name, (requirement, n_hashes) in locked(lock).items():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], name
        assert n_hashes > 0, name


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_name_no_place(lock):
    text = (ROOT / "envs" / f"{lock}.lock.txt").read_text()
    assert re.findall(r"\w+://|^--?\w.*|file:|@ .*", text, flags=re.MULTILINE) == []
    header = text.splitlines()[:2]
    assert "envs/lock.sh" in header[0]
    assert header[1].startswith("# uv pip compile ")


@pytest.mark.parametrize("lock", EXTRAS)
def test_locks_hold_what_pyproject_asks_for(lock):
    for name, requirement in requirements(EXTRAS[lock]).items():
        assert name in locked(lock), f"run 'make lock': {name} is not in envs/{lock}.lock.txt"
        version = locked_version(lock, name)
        assert version in requirement.specifier, f"run 'make lock': {name} {version}"


def test_the_locks_of_the_tests_have_two_versions_of_scanpy():
    found = [locked_version(lock, "scanpy") for lock in ("test", "test-scanpy112")]
    assert [version.rpartition(".")[0] for version in found] == ["1.11", "1.12"]


def test_the_tests_run_on_the_versions_of_the_workflow():
    for lock in ("cpu", "build"):
        for name, (requirement, _) in locked(lock).items():
            if lock == "build" and name not in locked("test"):
                continue
            assert locked("test")[name][0].specifier == requirement.specifier, name


PYTHON_NAMES = {
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "python-igraph": "igraph",
}


@pytest.mark.parametrize("environment", ["cpu", "gpu-cu12", "gpu-cu13"])
def test_conda_environments_agree_with_the_locks(environment):
    content = yaml.safe_load((ROOT / "envs" / f"{environment}.yaml").read_text())
    assert content["channels"] == ["conda-forge", "nodefaults"]
    pinned = {}
    for entry in content["dependencies"]:
        if isinstance(entry, dict):
            pinned |= dict(line.split("==") for line in entry["pip"])
        elif "=" in entry:
            pinned |= dict([entry.split("=")])
    python = pinned.pop("python")
    assert python in {"3.11", "3.12", "3.13"}
    cuda = environment.removeprefix("gpu-cu")
    names = PYTHON_NAMES | {"cupy": f"cupy-cuda{cuda}x"}
    if environment != "cpu":
        assert pinned.pop("cuda-version") == cuda

    versions = {names.get(name, name): version for name, version in pinned.items()}
    wanted = set(requirements(EXTRAS[environment])) - {"snakemake"}
    assert versions == {name: locked_version(environment, name) for name in wanted}


def test_conda_environments_are_those_that_make_lock_writes():
    written = runpy.run_path(str(ROOT / "envs/conda_yaml.py"))
    for environment, extras in written["EXTRAS"].items():
        text = (ROOT / "envs" / f"{environment}.yaml").read_text()
        assert text == written["environment"](environment, extras)


# --- creating the environment --------------------------------------------------------------------


@pytest.fixture
def create(tmp_path):
    """Run envs/create.sh with nothing on PATH but what a test puts there."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "rm"):
        (tools / tool).symlink_to(shutil.which(tool))

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which("bash"), ROOT / "envs/create.sh", tmp_path / "venv"],
            env={"PATH": str(tools), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def stub(name: str, *, refuses: str) -> None:
        """A Python that fails when asked about ``refuses``."""
        script = f'#!{shutil.which("bash")}\ncase "$*" in *"{refuses}"*) exit 1;; esac\n'
        (tools / name).write_text(f'{script}exec "{sys.executable}" "$@"\n')
        (tools / name).chmod(0o755)

    run.stub = stub
    return run


def test_no_python_is_one_sentence(create):
    done = create()
    assert done.returncode == 1
    assert done.stderr.startswith("scatlas: Python 3.11 or newer is needed and none was found")
    assert done.stderr.count("\n") == 1


def test_an_old_python_is_one_sentence(create):
    create.stub("oldpython", refuses="(3, 11)")
    create.stub("python3", refuses="(3, 11)")
    assert "none was found" in create().stderr
    done = create(PYTHON="oldpython")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "scatlas: PYTHON=oldpython is not a Python of version 3.11 or newer"
    )
    assert done.stderr.count("\n") == 1


def test_a_python_without_venv_names_the_package_to_install(create, tmp_path):
    create.stub("python3", refuses="ensurepip")
    done = create()
    assert done.returncode == 1
    assert f"sudo apt-get install python3.{sys.version_info.minor}-venv" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


def test_a_python_that_can_is_preferred_to_a_newer_one_that_cannot(create, tmp_path):
    create.stub("python3.13", refuses="ensurepip")
    create.stub("python3.11", refuses="-m venv")
    create.stub("python3", refuses="nothing")
    done = create()
    # python3.11 was taken for its ensurepip, and its venv then failed: python3.13 was not tried.
    assert done.returncode != 0
    assert "Creating" in done.stdout
    assert "apt-get" not in done.stderr


# --- the package ---------------------------------------------------------------------------------


def _package_files() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_nothing_imports_scanpy():
    users = [
        path.relative_to(PACKAGE)
        for path in _package_files()
        if re.search(r"^\s*(import|from) scanpy", path.read_text(), flags=re.MULTILINE)
    ]
    assert users == []


# Lines of a body: beyond the signature and the docstring of a function.
MAX_BODY_LINES = 60


def _body_lines(function: ast.FunctionDef) -> int:
    first = function.body[1 if ast.get_docstring(function) and function.body[1:] else 0]
    return (function.end_lineno or 0) - first.lineno + 1


def test_functions_are_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {_body_lines(node)} lines"
        for path in [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and _body_lines(node) > MAX_BODY_LINES
    ]
    assert long == [], f"split functions of more than {MAX_BODY_LINES} lines"


def test_import_is_light():
    heavy = ["anndata", "cupy", "dask", "h5py", "matplotlib", "numba", "numpy", "pandas", "scipy"]
    heavy += ["scanpy", "sklearn", "zarr"]
    program = (
        "import sys, scatlas\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
        "import scatlas.pp, scatlas.tl\n"
        "print([name for name in ('numba', 'matplotlib', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
    )
    assert done.stdout.splitlines() == ["[]", "[]"]


def _public_functions():
    import scatlas as sa

    for module in (sa.pp, sa.tl):
        for name in module.__all__:
            member = getattr(module, name)
            if inspect.isfunction(member):
                yield f"{module.__name__}.{name}", member


def test_public_functions_keep_the_conventions():
    faults = []
    seen = 0
    for name, function in _public_functions():
        seen += 1
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        if len(positional) > 3:
            faults.append(f"{name}: more than three positional parameters: {positional}")
        if "random_state" in positional or not hasattr(function, "passes"):
            faults.append(f"{name}: blocks.passes does not take rng for its random_state")
        if "copy" in positional:
            faults.append(f"{name}: copy is positional")
        document = inspect.getdoc(function) or ""
        faults += [
            f"{name}: {p.name} is not in the docstring"
            for p in parameters
            if not re.search(rf"\b{p.name}\b", document)
        ]
        faults += [f"{name}: {p.name} has no type" for p in parameters if p.annotation is p.empty]
    assert faults == []
    assert seen >= 10


def test_no_two_test_files_share_a_name():
    # pytest imports them by name alone; two in one process are an error of collection.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
