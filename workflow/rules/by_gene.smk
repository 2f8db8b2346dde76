# The kept cells' counts gene after gene, for look-ups of single genes (config: by_gene).
# in:  plates/{plate}/{counts.zarr,qc.parquet}; merged.zarr, for the size factors
# out: plates/{plate}/by_gene.zarr, by_gene.zarr, whose files are links to those of the plates
#
# Another map or other clusters change nothing here. With all genes, neither do the atlas's genes.


rule by_gene:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        kept=f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}"),
        genes=genes_by_gene,
        script=script("by_gene"),
    output:
        by_gene=f"{OUT}/plates/{{plate}}/by_gene.zarr/zarr.json",
        manifest=f"{OUT}/manifests/by_gene/{{plate}}.json",
    log:
        f"{OUT}/logs/by_gene/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/by_gene/{{plate}}.tsv"
    priority: -1
    retries: 2
    group:
        together("small_plates_by_gene", "by_gene")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("by_gene")
    resources:
        **requests("by_gene", "small_plates"),
    params:
        genes=by_gene_option,
        code=code("by_gene"),
        store=subpath(input.store, parent=True),
        by_gene=subpath(output.by_gene, parent=True),
    message:
        "counts by gene of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --qc {input.qc:q} {params.genes} --by-gene {params.by_gene:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule merge_by_gene:
    input:
        by_gene=each(f"{OUT}/manifests/by_gene/{{plate}}.json"),
        pieces=ancient(each(f"{OUT}/plates/{{plate}}/by_gene.zarr/zarr.json")),
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        script=script("merge_by_gene"),
    output:
        by_gene=f"{OUT}/by_gene.zarr/zarr.json",
        manifest=f"{OUT}/manifests/merge_by_gene.json",
    log:
        f"{OUT}/logs/merge_by_gene.log",
    benchmark:
        f"{OUT}/benchmarks/merge_by_gene/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("merge_by_gene")
    resources:
        **requests("merge_by_gene", "small_atlas"),
    params:
        pieces=each(f"{OUT}/plates/{{plate}}/by_gene.zarr", options=True),
        code=code("merge_by_gene"),
        merged=subpath(input.merged, parent=True),
        by_gene=subpath(output.by_gene, parent=True),
    message:
        "counts by gene of all plates"
    shell:
        f"{RUN}"
        " {input.script:q} --pieces {params.pieces:q} --merged {params.merged:q}"
        " --by-gene {params.by_gene:q}"
        f"{STEP_TAIL}"


RESULTS += rules.merge_by_gene.output
