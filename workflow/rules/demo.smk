# The demo's plates, simulated if their files do not exist.
# in:  nothing
# out: resources/demo/{plate}.h5ad


rule simulate:
    input:
        script=script("simulate"),
    output:
        f"{DEMO_FOLDER}/plate{{n}}.h5ad",
    log:
        f"{DEMO_FOLDER}/logs/plate{{n}}.log",
    benchmark:
        f"{DEMO_FOLDER}/benchmarks/plate{{n}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("simulate")
    resources:
        **requests("simulate"),
    params:
        code=code("simulate"),
    message:
        "simulating plate {wildcards.n}"
    shell:
        f"{RUN}"
        " {input.script:q} --number {wildcards.n} --out {output:q} 2>&1 | tee {log:q}"
