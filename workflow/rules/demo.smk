# The demo's plates, and labelled cells of two further ones, simulated if their files do not exist.
# in:  nothing
# out: resources/demo/{plate}.h5ad, resources/demo/labelled.h5ad


wildcard_constraints:
    simulated=r"plate\d+|labelled",


rule simulate:
    input:
        script=script("simulate"),
    output:
        f"{DEMO_FOLDER}/{{simulated}}.h5ad",
    log:
        f"{DEMO_FOLDER}/logs/{{simulated}}.log",
    benchmark:
        f"{DEMO_FOLDER}/benchmarks/{{simulated}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("simulate")
    resources:
        **requests("simulate"),
    params:
        number=lambda wildcards: (
            "101 102 --cells 600"
            if wildcards.simulated == "labelled"
            else wildcards.simulated.removeprefix("plate")
        ),
        code=code("simulate"),
    message:
        "simulating {wildcards.simulated}"
    shell:
        f"{RUN}"
        " {input.script:q} --number {params.number} --out {output:q} 2>&1 | tee {log:q}"
