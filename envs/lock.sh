#!/usr/bin/env bash
# Writes all locks and conda environments of envs/ from pyproject.toml and envs/build.in.
# Versions that are locked already stay; options go to uv:
#   envs/lock.sh                          after a change of pyproject.toml
#   envs/lock.sh --upgrade                everything to its newest version
#   envs/lock.sh --upgrade-package zarr   one package
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=$(command -v uv || true)
python=$(command -v python3)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -z $uv ]]; then
  "$python" -m venv "$scratch/uv"
  "$scratch/uv/bin/python" -m pip install -qq --disable-pip-version-check uv
  uv=$scratch/uv/bin/uv
fi

options=("$@")

# lock NAME ARGUMENTS...: resolves into envs/NAME.lock.txt
lock() {
  local out=envs/$1.lock.txt
  shift
  local command=(pip compile "$@" --generate-hashes --no-emit-index-url --no-header
    --no-emit-package scatlas --quiet)
  printf 'locking %s\n' "$out" >&2
  # uv reads the old lock from the output file and keeps its versions.
  [[ ! -e $out ]] || cp "$out" "$scratch/lock.txt"
  "$uv" "${command[@]}" "${options[@]}" --output-file "$scratch/lock.txt" >/dev/null
  {
    printf '# Made by envs/lock.sh; do not edit. The command:\n# uv %s\n' "${command[*]}"
    grep -v '^#' "$scratch/lock.txt"
  } >"$out"
  rm -f "$scratch/lock.txt"
}

any=(--universal --fork-strategy fewest)
# The test lock comes first: it holds the most constraints, and the others take its versions,
# so that one environment serves the workflow and the tests alike.
lock test pyproject.toml --extra test "${any[@]}"
# scanpy 1.12 needs Python 3.12: the second reference of the parity tests.
lock test-scanpy112 pyproject.toml --extra test --python-version 3.12 "${any[@]}"
lock cpu pyproject.toml --extra workflow --constraints envs/test.lock.txt "${any[@]}"
lock build envs/build.in --constraints envs/test.lock.txt "${any[@]}"
for cuda in 12 13; do
  lock "gpu-cu$cuda" pyproject.toml --extra workflow --extra "gpu-cu$cuda" \
    --python-version 3.12 "${any[@]}"
done

"$uv" run --quiet --no-project --python '>=3.11' envs/conda_yaml.py
