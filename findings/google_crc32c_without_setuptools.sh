#!/usr/bin/env bash
# google-crc32c 1.5.0 (the checksums of Zarr's shards): its compiled part is found by pkg_resources, which no
# longer comes with Python. Where setuptools is not installed the package falls back to its own Python
# code, hundreds of times slower, with nothing but a warning. 1.6.0 needs no pkg_resources. Seen: "1.5.0
# implementation: python" and "1.6.0 implementation: c".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 1.5.0 1.6.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q --disable-pip-version-check "google-crc32c==$version"
  "$folder/$version/bin/pip" uninstall -q -y setuptools 2>/dev/null || true
  "$folder/$version/bin/python" -W ignore - "$version" <<'PY' | tee -a "$folder/seen"
import sys
import time

import google_crc32c

begin = time.perf_counter()
google_crc32c.value(bytes(1_000_000))
print(sys.argv[1], "implementation:", google_crc32c.implementation)
print(f"a megabyte takes {1000 * (time.perf_counter() - begin):.1f} ms")
PY
done
grep -q '^1.5.0 implementation: python' "$folder/seen"
grep -q '^1.6.0 implementation: c' "$folder/seen"
