# The plate atlas: plates of single-cell counts in, one atlas, a UMAP and a report out.
#
#   snakemake                                   the demo: four simulated plates
#   snakemake --configfile=my.yaml              your plates (config/README.md)
#   snakemake --configfile=my.yaml atlas        up to the merged, embedded store alone
#   snakemake --configfile=new.yaml map_plates  new plates on a finished atlas (docs/new-plates.md)
#   snakemake --configfile=new.yaml extend      a new version of the atlas, with these plates
#
# A missing key of your config takes its value from the demo's config/config.yaml.
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.14")


# The user's config, without the defaults.
GIVEN = dict(config)
if not GIVEN and workflow.is_main_process and Path("atlas.yaml").exists():
    raise WorkflowError(
        "this folder has atlas.yaml, but no config is given: add --configfile=atlas.yaml, or "
        "--configfile=config/demo.yaml for the demo"
    )
# What users get: each file of rules adds its outputs.
RESULTS = []


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/options.smk"
include: "workflow/rules/resources.smk"
include: "workflow/rules/sources.smk"
include: "workflow/rules/demo.smk"


if SPLITS:

    include: "workflow/rules/samples.smk"


include: "workflow/rules/plates.smk"


if CONFIG.doublets:

    include: "workflow/rules/doublets.smk"


report: "workflow/report/workflow.rst"


if ATLAS:

    include: "workflow/rules/new_plates.smk"

    rule map_plates:
        default_target: True
        input:
            rules.map_report.output.page,

else:

    include: "workflow/rules/consensus.smk"
    include: "workflow/rules/atlas.smk"

    if CONFIG.harmony:

        include: "workflow/rules/harmony.smk"

    if CONFIG.map.use:

        include: "workflow/rules/latent.smk"
    include: "workflow/rules/embedding.smk"

    if CONFIG.maps_all_cells:

        include: "workflow/rules/map.smk"

    if GROUPED:

        include: "workflow/rules/cell_groups.smk"

    # A section that is null by default may have its own rules, in a file of its name.
    for section in CONFIG.switched_on:
        if (
            section not in ("doublets", "labels")
            and (HERE / f"workflow/rules/{section}.smk").exists()
        ):

            include: f"workflow/rules/{section}.smk"

    if CONFIG.names_cells:

        include: "workflow/rules/labels.smk"

    if CONFIG.markers.by:

        include: "workflow/rules/markers.smk"
    include: "workflow/rules/report.smk"

    if CONFIG.by_gene.genes:

        include: "workflow/rules/by_gene.smk"

    if CONFIG.explore.page:

        include: "workflow/rules/explore.smk"

    if CONFIG.address:

        include: "workflow/rules/publish.smk"

    rule all:
        default_target: True
        input:
            RESULTS,
            [rules.publish.output.manifest] if CONFIG.address else [],


include: "workflow/rules/integrity.smk"
include: "workflow/rules/messages.smk"
