# The demo's plates, simulated if their files do not exist.
# in:  nothing
# out: resources/demo/{plate}.h5ad, resources/demo/labelled.h5ad


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


# Two more plates, whose cell lines are known: labelled cells for the others.
rule simulate_labelled:
    input:
        script=script("simulate"),
    output:
        f"{DEMO_FOLDER}/labelled.h5ad",
    log:
        f"{DEMO_FOLDER}/logs/labelled.log",
    benchmark:
        f"{DEMO_FOLDER}/benchmarks/labelled.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("simulate")
    resources:
        **requests("simulate"),
    params:
        code=code("simulate"),
    message:
        "simulating labelled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --number 101 102 --cells 600 --out {output:q} 2>&1 | tee {log:q}"
