# The results, copied to an address (config: outdir).
# in:  all results
# out: the same files at the address, and published.json, the list of them


def is_manifest(path):
    return Path(path).parent.name == "manifests"


def published_names(wildcards, input):
    """Names of the results in their folder, without what is about the run."""
    folder = Path(with_prefix(OUT))
    names = {Path(path).relative_to(folder).parts[0] for path in input.results}
    return sorted(names - {"manifests"})


rule publish:
    input:
        # Snakemake compares these by content.
        manifests=[path for path in RESULTS if is_manifest(path)],
        results=ancient(RESULTS),
        script=script("publish"),
    output:
        manifest=f"{OUT}/manifests/publish.json",
    log:
        f"{OUT}/logs/publish.log",
    benchmark:
        f"{OUT}/benchmarks/publish/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("publish")
    resources:
        **requests("publish"),
    params:
        folder=with_prefix(OUT),
        names=published_names,
        address=as_is(CONFIG.address),
        code=code("publish"),
    message:
        "copying the results to {params.address}"
    shell:
        f"{RUN}"
        " {input.script:q} --folder {params.folder:q} --names {params.names:q}"
        " --address {params.address:q}"
        f"{STEP_TAIL}"
