"""docs/compatibility.md, from the lists of tests and the reasons for those that fail."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PASSES, FAILURES, REASONS = HERE / "passes.txt", HERE / "failures.txt", HERE / "reasons.toml"
PAGE = HERE.parents[1] / "docs" / "compatibility.md"

_PAGE = """\
<!-- Written by `python -m tests.compat.run --update`; what stands here is in tests/compat. -->

# scanpy's own tests, with scatlas in its place

scanpy's test-suite calls `sc.pp.scale`, `sc.tl.leiden` and the rest. `make test` runs it with
scatlas's functions under these names. Of the {n_judged} tests of scanpy {version} that pass with
scanpy's own functions and call one that scatlas has too, **{n_passes} pass with scatlas
({share:.0f} %)**. Each of the others is below, with its reason.

| tests | judged | pass | do not |
|---|---:|---:|---:|
{files}
| all | {n_judged} | {n_passes} | {n_failures} |

## Why the others do not

{reasons}
## What is judged, and what not

The tests are those of the installed scanpy, from its source distribution; the hash in
`envs/test.lock.txt` vouches for it. Before they are imported, the public functions of `scanpy.pp`,
`scanpy.tl` and `scanpy.get` that scatlas has under the same name are replaced by scatlas's:
{functions}.
What scanpy's modules call of each other stays theirs, so that its plots and others meet
scatlas's results. A test counts if it passes with scanpy's functions under the same conditions and
calls one of ours. So none counts that scanpy skips, expects to fail, or fails with the versions of
packages that are locked here.

One thing of the tests is changed: the Dask arrays that they make are cut along the cells alone,
for scanpy as for scatlas. anndata's helper cuts them along the genes too, which scatlas refuses,
with the call that mends it: `adata.X = adata.X.rechunk({{1: -1}})`.

Data that scanpy's tests fetch from the network (`pbmc3k`, `pbmc3k_processed`) is simulated in the
same form: tests that compare with numbers of the real data fail for scanpy too, and do not count.
Random numbers are seeded by the name of the test.

```bash
python -m tests.compat.run             # the tests that passed still pass; a part of `make test`
python -m tests.compat.run --update    # after a change of scanpy, or of what scatlas offers
```

A test that passed and does not any more fails `make test`: the list cannot get shorter unnoticed.
An update ends with the failures that have no reason yet in `tests/compat/reasons.toml`.
"""


def read(path: Path) -> list[str]:
    """The names in a list, without its first lines."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def recorded_version() -> str:
    """Version of scanpy whose tests the lists name."""
    return re.search(r"scanpy (\S+)", PASSES.read_text())[1]


def recorded_functions() -> list[str]:
    """Functions of ours, as ``pp.scale``, that stood in the places of scanpy's."""
    return re.search(r"# Functions: (.*)", PASSES.read_text())[1].split()


@dataclass
class Reason:
    """Why some tests do not pass."""

    title: str
    why: str
    tests: list[str]
    of: list[str] = field(default_factory=list)

    def fits(self, name: str) -> bool:
        """Whether one of the patterns is the name, or the name without its parameters."""
        for pattern in self.tests:
            expression = re.escape(pattern).replace(r"\*", ".*")
            if re.fullmatch(expression, name) or re.fullmatch(expression, name.split("[")[0]):
                return True
        return False


def reasons() -> list[Reason]:
    """What reasons.toml says, each with the failures that it explains: the first that fits."""
    found = [Reason(**entry) for entry in tomllib.loads(REASONS.read_text())["reason"]]
    for name in read(FAILURES):
        for reason in found:
            if reason.fits(name):
                reason.of.append(name)
                break
    return found


def unexplained() -> list[str]:
    """Failures without a reason."""
    explained = {name for reason in reasons() for name in reason.of}
    return [name for name in read(FAILURES) if name not in explained]


def render() -> str:
    """The page."""
    passes, failures = read(PASSES), read(FAILURES)
    passed, failed = (
        Counter(name.split("::")[0] for name in names) for names in (passes, failures)
    )
    rows = [
        f"| `{file}` | {passed[file] + failed[file]} | {passed[file]} | {failed[file]} |"
        for file in sorted(passed | failed)
    ]
    n_judged = len(passes) + len(failures)
    return _PAGE.format(
        version=recorded_version(),
        functions=", ".join(f"`{name}`" for name in recorded_functions()),
        files="\n".join(rows),
        reasons="".join(map(_section, sorted(reasons(), key=lambda reason: -len(reason.of)))),
        n_judged=n_judged,
        n_passes=len(passes),
        n_failures=len(failures),
        share=100 * len(passes) / n_judged,
    )


def _section(reason: Reason) -> str:
    n = len(reason.of)
    text = f"### {reason.title} ({n} {'test' if n == 1 else 'tests'})\n\n{reason.why.strip()}\n\n"
    for name, cases in Counter(name.split("[")[0] for name in reason.of).items():
        text += f"- `{name}`{f' ({cases} cases)' if cases > 1 else ''}\n"
    return text + "\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(render())
