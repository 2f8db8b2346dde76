#!/usr/bin/env bash
# snakemake 9.27.1: as long as --max-jobs-per-timespan has its default (100/1s), each look for jobs that can
# start sets a timer for another look, which sets the next timer, and so does each job that ends. N jobs that
# have ended make N looks in a second, for the rest of the run; with some hundred jobs of a second each they
# take all the time of the main thread. The end of the run waits for the last timer, too.
# Seen: "looks for 60 jobs: 3 times as many".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check snakemake==9.27.1
cat >Snakefile <<'SMK'
rule all:
    input: expand("{i}.txt", i=range(60))
rule one:
    output: "{i}.txt"
    shell: "sleep 0.5; touch {output}"
SMK
venv/bin/snakemake --cores 2 --scheduler greedy --verbose >log 2>&1
looks=$(grep -c "^Ready jobs" log)
if ((looks > 3 * 60)); then echo "looks for 60 jobs: 3 times as many"; else echo "looks for 60 jobs: $looks"; fi
((looks > 3 * 60))
