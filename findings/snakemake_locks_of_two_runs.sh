#!/usr/bin/env bash
# Snakemake 9.14.0: two runs of different outputs in one working folder are allowed, and each writes its
# locks into .snakemake/locks. The one that ends first removes the whole folder, also the locks of the
# other, which still runs: from then on a third run of the same outputs is not refused.
# Seen: "locks while both run: 4", "locks while one runs: 0".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'snakemake==9.14.0'
cd "$folder"
cat >Snakefile <<'RULES'
rule wait:
    output: "{name}.txt"
    shell: "touch {wildcards.name}.begun; while [ ! -e {wildcards.name}.go ]; do sleep 0.2; done; touch {output}"
RULES
export PATH=$folder/venv/bin:$PATH HOME=$folder
for name in short long; do snakemake --cores 1 --quiet all "$name.txt" >"$name.log" 2>&1 & done
until [[ -e short.begun && -e long.begun ]]; do sleep 0.5; done
both=$(find .snakemake/locks -type f | wc -l)
touch short.go
until [[ -e short.txt ]] && ! pgrep -f 'snakemake .*short.txt' >/dev/null; do sleep 0.5; done
one=$(find .snakemake/locks -type f 2>/dev/null | wc -l)
touch long.go
wait
echo "locks while both run: $both"
echo "locks while one runs: $one"
[[ $both -gt 0 && $one -eq 0 && -e long.txt ]]
