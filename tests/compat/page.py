"""Write docs/compatibility.md from the lists of tests and the reasons of failures."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import TextWrapper

HERE = Path(__file__).resolve().parent
PASSES, FAILURES, REASONS = HERE / "passes.txt", HERE / "failures.txt", HERE / "reasons.toml"
PAGE = HERE.parents[1] / "docs" / "compatibility.md"

_PAGE = """\
<!-- Written by `python -m tests.compat.run --update`; its sources are in tests/compat. -->

# scanpy's own tests, run with scatlas

scanpy's test-suite calls `sc.pp.scale`, `sc.tl.leiden` and others. `make test-weekly` runs it with
scatlas's functions under these names, and `make test` a part of it. {n_judged} tests of scanpy
{version} pass with scanpy's own functions and call a function that scatlas has, too. **{n_passes}
of them pass with scatlas ({share:.0f} %)**; the others are listed below, each with its reason.

| tests | judged | pass | fail |
|---|---:|---:|---:|
{files}
| all | {n_judged} | {n_passes} | {n_failures} |

## Reasons of the failures

{reasons}
## Judged tests

The tests come from the source distribution of the installed scanpy, checked by the hash in
`envs/test.lock.txt`. Before their import, scatlas's functions replace the public functions with the
same name in `scanpy.pp`, `scanpy.tl` and `scanpy.get`:
{functions}.
scanpy's modules still call each other, so its plots and other functions use scatlas's results. A
test counts if it passes with scanpy's functions under the same conditions and calls one of
scatlas's. So no test counts that scanpy skips, expects to fail, or fails with the locked versions
of packages.

One detail of the tests differs, for scanpy as for scatlas: their Dask arrays have chunks along the
cells alone. anndata's helper also makes chunks along the genes, which scatlas refuses, with the
call that fixes it: `adata.X = adata.X.rechunk({{1: -1}})`.

Data that scanpy's tests fetch from the network (`pbmc3k`, `pbmc3k_processed`) is simulated in the
same form: tests that compare with numbers of the real data fail for scanpy, too, and do not count.
The name of a test seeds its random numbers.

```bash
python -m tests.compat.run             # the tests that passed still pass
python -m tests.compat.run --update    # after a change of scanpy, or of scatlas's functions
```

If a test that passed fails, `make test-weekly` fails, so the list cannot get shorter unnoticed. An
update prints the failures that have no reason yet in `tests/compat/reasons.toml`.
"""


def read(path: Path) -> list[str]:
    """Names of a list: below a test of several cases stand these, indented."""
    names: list[str] = []
    test = ""
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            names += [f"{test}[{case}]" for case in line.split()]
        elif line.endswith(":"):
            test = line.removesuffix(":")
        elif line and not line.startswith("#"):
            names.append(line)
    return names


_wrapped = TextWrapper(
    98,
    initial_indent="  ",
    subsequent_indent="  ",
    break_long_words=False,
    break_on_hyphens=False,
).wrap


def listed(names: Iterable[str]) -> str:
    """Names as :func:`read` takes them."""
    cases: dict[str, list[str]] = {}
    for name in sorted(names):
        test, _, case = name.removesuffix("]").partition("[")
        # A case with a space is named with its test.
        whole = not case or " " in case
        cases.setdefault(name if whole else test, []).extend([] if whole else [case])
    lines = []
    for test, found in cases.items():
        lines.append(f"{test}:" if found else test)
        lines += _wrapped(" ".join(found))
    return "".join(f"{line}\n" for line in lines)


def recorded_version() -> str:
    """Version of scanpy whose tests the lists name."""
    return re.search(r"scanpy (\S+)", PASSES.read_text())[1]


def recorded_functions() -> list[str]:
    """Functions of scatlas, as ``pp.scale``, that replaced scanpy's."""
    return re.search(r"# Functions: (.*)", PASSES.read_text())[1].split()


@dataclass
class Reason:
    """Reason of failing tests."""

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
    """Reasons of reasons.toml, each with its failures; a failure belongs to the first that fits."""
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
