#!/usr/bin/env bash
# google-crc32c 1.5.0 (the checksums of Zarr's shards): its module imports pkg_resources, which no longer
# comes with Python or with pip. Without it the package falls back, with a warning that is easily missed, to
# its own Python code, in which Checksum.update() of more than a byte ends in an OverflowError. 1.6.0 has
# neither. Seen: "1.5.0 implementation: python" and "1.6.0 implementation: c".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 1.5.0 1.6.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q --disable-pip-version-check "google-crc32c==$version"
  "$folder/$version/bin/pip" uninstall -q -y setuptools 2>/dev/null || true
  "$folder/$version/bin/python" -W ignore - "$version" <<'PY' | tee -a "$folder/seen"
import sys

import google_crc32c

print(sys.argv[1], "implementation:", google_crc32c.implementation)
if google_crc32c.implementation == "python":
    try:
        google_crc32c.Checksum().update(b"chunk of a shard")
        print("update: works")
    except OverflowError as error:
        print("update: OverflowError:", error)
PY
done
grep -q '^1.5.0 implementation: python' "$folder/seen"
grep -q '^update: OverflowError' "$folder/seen"
grep -q '^1.6.0 implementation: c' "$folder/seen"
