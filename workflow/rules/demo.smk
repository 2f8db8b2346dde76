# The demo's plates, made where the plate sheet names them and no file is.
# in:  nothing
# out: resources/demo/{plate}.h5ad


rule simulate:
    input:
        script=script("simulate"),
    output:
        f"{DEMO}/plate{{n}}.h5ad",
    log:
        f"{DEMO}/logs/plate{{n}}.log",
    benchmark:
        f"{DEMO}/benchmarks/plate{{n}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=table_memory,
        runtime=10,
    params:
        code=code("simulate"),
    message:
        "simulating plate {wildcards.n}"
    shell:
        "python {input.script:q} --number {wildcards.n} --out {output:q} 2>&1 | tee {log:q}"
