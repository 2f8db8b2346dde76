#!/usr/bin/env bash
# envs/create.sh FOLDER: an empty virtual environment there, with the newest Python that the tests cover.
# PYTHON, if set, names the interpreter. An environment that works already is left alone.
set -euo pipefail
folder=$1

fail() {
  printf 'scatlas: %s\n' "$*" >&2
  exit 1
}
# Runs, and is new enough; a version manager's stub on PATH may do neither.
usable() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}
version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

if usable "$folder/bin/python" && "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
  exit 0
fi

found=()
if [[ -n ${PYTHON:-} ]]; then
  usable "$PYTHON" ||
    fail "PYTHON=$PYTHON is not a Python of version 3.11 or newer; leave PYTHON out or name another one."
  found=("$PYTHON")
else
  for name in python3.13 python3.12 python3.11 python3; do
    if usable "$name"; then
      found+=("$name")
    fi
  done
  [[ ${#found[@]} -gt 0 ]] ||
    fail "Python 3.11 or newer is needed and none was found: install one (Debian, Ubuntu: 'sudo apt-get install python3 python3-venv'), or name it with 'make demo PYTHON=/path/to/python3.12'."
fi

# What a killed or broken attempt left behind.
rm -rf "$folder"
for python in "${found[@]}"; do
  if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    printf 'Creating %s with Python %s\n' "$folder" "$(version "$python")"
    "$python" -m venv "$folder"
    exit 0
  fi
done

# Debian ships pip for venv as a separate package; these two tools include pip.
python=${found[0]}
if command -v virtualenv >/dev/null; then
  virtualenv --quiet --python "$python" "$folder"
elif command -v uv >/dev/null; then
  uv venv --quiet --seed --python "$python" "$folder"
else
  fail "Python $(version "$python") cannot create virtual environments here; run 'sudo apt-get install python$(version "$python")-venv' and try again."
fi
