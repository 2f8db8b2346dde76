#!/usr/bin/env bash
# snakemake 9.27.1: a line of a Python function in a Snakefile that begins with a variable called "rule" or
# "checkpoint", as formatters break long expressions, is taken for the beginning of a rule. The error that
# follows is not shown: its reporter looks for a line that its table does not have, and the user sees
# "KeyError: 3" with a traceback, and no name of a file. Other words of rules ("config", "threads") are fine.
# Seen: "rule: KeyError, checkpoint: KeyError, threads: runs".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check snakemake==9.27.1
seen=()
for word in rule checkpoint threads; do
  cat >"$word.py" <<PY
def known($word, names):
    return [
        $word in names,
    ]
PY
  venv/bin/python -m py_compile "$word.py" # valid Python
  { cat "$word.py"; printf '\n\nrule all:\n    output: "x"\n    shell: "touch {output}"\n'; } >"$word.smk"
  if venv/bin/snakemake --snakefile "$word.smk" --dry-run --quiet >"$word.log" 2>&1; then
    seen+=("$word: runs")
  else
    seen+=("$word: $(grep -oE '^[A-Za-z]+Error' "$word.log" | tail -1)")
  fi
done
printf -v found '%s, ' "${seen[@]}"
echo "${found%, }"
[[ ${found%, } == "rule: KeyError, checkpoint: KeyError, threads: runs" ]]
