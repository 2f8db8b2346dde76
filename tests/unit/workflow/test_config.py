"""The config: what is refused and how, options of scripts, generated files."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from snakemake.cli import parse_config

import scatlas as sa
from scatlas.errors import ConfigError
from scatlas.workflow.config import generate
from scatlas.workflow.config.atlas_sections import PCA, Cluster, Scale
from scatlas.workflow.config.cli_options import add_sections, read_section, sections_option
from scatlas.workflow.config.loading import check_plates, load
from scatlas.workflow.config.plate_sections import HVG, QC
from scatlas.workflow.config.plate_sheet import Plate, read_plates
from scatlas.workflow.config.sections import Config, Harmony, Report
from scatlas.workflow.config.values import query_columns

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs"))

import config_keys  # noqa: E402

# Every key and its default, as users read them. Sections that are off are comments: of null and a
# user's {} Snakemake makes null.
TEXT = (ROOT / "config/config.yaml").read_text()
OFF = re.compile(r"^( *)# (\w+: null)$", re.MULTILINE)
DEFAULTS = yaml.safe_load(OFF.sub(r"\1\2", TEXT))
DEFAULTS["plates"] = {"sheet": DEFAULTS["plates"], "path": None, "by": None, "on_error": "stop"}
DEFAULTS["by_gene"] = {"genes": "auto"}


def refusal(source) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source)
    return str(caught.value)


# Loading ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_plates", "min_plates", "n_top_genes", "most"),
    [(3, 3, 100, 100), (3, 2, 100, 150), (5, 3, 10, 16), (1, 1, 7, 7)],
)
def test_components_beyond_what_votes_allow(n_plates, min_plates, n_top_genes, most):
    plates = [Plate(plate=f"p{i}", path=f"{i}.h5ad") for i in range(n_plates)]
    config = {"hvg": {"n_top_genes": n_top_genes}, "consensus": {"min_plates": min_plates}}
    check_plates(load(config | {"pca": {"n_comps": most}}), plates)
    refused = rf"pca.n_comps is {most + 1}, but the atlas has at most {most} genes: hvg.n_top_genes"
    with pytest.raises(ConfigError, match=refused):
        check_plates(load(config | {"pca": {"n_comps": most + 1}}), plates)


def test_home(monkeypatch):
    monkeypatch.setenv("HOME", "/me")
    config = load({"plates": "~/plates.tsv", "outdir": "~/atlas/"})
    assert (config.plates.sheet, config.outdir) == ("/me/plates.tsv", "/me/atlas")
    assert load({"outdir": "./~"}).outdir == "~"
    unknown = "outdir: '~nobody-of-this-name/x': the home of ~nobody-of-this-name is not known"
    with pytest.raises(ConfigError, match=unknown):
        load({"outdir": "~nobody-of-this-name/x"})


def test_defaults_are_those_that_users_read():
    assert load({}).model_dump() == DEFAULTS
    assert load(DEFAULTS).model_dump() == DEFAULTS


def test_few_lines_are_a_config(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("\ufeffoutdir: ./out/\r\nqc:\r\n  # min_genes: 5\r\nscale: {}\r\n", "utf-8")
    config = load(path)
    assert config.outdir == "out"
    assert config.qc == QC()
    assert config.scale == Scale(zero_center=False, max_value=None)
    assert load(str(path)) == config


def test_a_cluster_is_a_config():
    made = load({"backend": "gpu", "compute": {"cluster": {"devices": 2, "protocol": "ucx"}}})
    told = {"kind": "local-gpu", "devices": 2, "protocol": "ucx"}
    assert made.compute.cluster.model_dump(exclude_none=True) == told


def test_the_cluster_of_the_config_takes_the_options_of_the_function():
    takes = set(inspect.signature(sa.cluster).parameters) - {"local_directory"}
    assert set(Cluster.model_fields) == takes


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_presets_load(path):
    config = load(path)
    plates = read_plates(ROOT / config.plates.sheet, check_files=False)
    check_plates(config, plates)


def test_tahoe_preset_is_the_published_notebook():
    config = load(ROOT / "config/tahoe-100m.yaml")
    assert config.model_dump() == DEFAULTS | {
        "plates": DEFAULTS["plates"] | {"sheet": "config/tahoe-100m.tsv"},
        "outdir": "results/tahoe-100m",
        "qc": DEFAULTS["qc"] | {"filter": "pass_filter == 'full'"},
        "consensus": DEFAULTS["consensus"] | {"min_plates": 3},
        "map": DEFAULTS["map"] | {"method": "project"},
    }
    plates = read_plates(ROOT / config.plates.sheet, check_files=False)
    assert [p.plate for p in plates] == [f"plate{i}" for i in range(1, 15)]
    assert sum(p.n_cells for p in plates) == 100_648_790  # the published number of cells


def test_the_presets_of_one_plate_are_the_published_notebooks():
    same = {
        "normalize": {"target_sum": 10_000},
        "hvg": {"flavor": "cell_ranger", "n_top_genes": 5000},
        "consensus": DEFAULTS["consensus"] | {"min_plates": 1},
        "scale": {"zero_center": False, "max_value": None},
        "pca": {"n_comps": 100, "zero_center": True},
        "report": DEFAULTS["report"] | {"colors": ["leiden"]},
    }
    bounds = DEFAULTS["qc"] | {"min_genes": 200, "max_genes": 10_000}
    cluster = {"kind": "local-gpu", "devices": 8, "rmm_managed_memory": True}
    own = {
        "brain-1.3m": {
            "qc": bounds | {"mt_prefix": "mt-"},
            "map": DEFAULTS["map"] | {"method": "full"},
            "neighbors": {"n_neighbors": 15, "n_pcs": 50},
        },
        "cell-atlas-11m": {
            "qc": bounds | {"drop_rare_genes": 10},
            "map": DEFAULTS["map"] | {"method": "full", "memory": "60GB"},
            "compute": DEFAULTS["compute"] | {"cluster": Cluster(**cluster).model_dump()},
        },
    }
    for name, n_cells in {"brain-1.3m": 1_306_127, "cell-atlas-11m": 11_441_407}.items():
        config = load(ROOT / f"config/{name}.yaml")
        sheet = DEFAULTS["plates"] | {"sheet": f"config/{name}.tsv"}
        places = {"plates": sheet, "outdir": f"results/{name}"}
        assert config.model_dump() == DEFAULTS | same | own[name] | places
        (plate,) = read_plates(ROOT / config.plates.sheet, check_files=False)
        assert plate.n_cells == n_cells


KNOWN = ", ".join(DEFAULTS)
QC_KEYS = ", ".join(DEFAULTS["qc"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        # Keys
        ("qc: {min_gene: 5}", f"'min_gene' in qc: did you mean 'min_genes'? known keys: {QC_KEYS}"),
        ("leidn: {}", f"unknown key 'leidn': did you mean 'leiden'? known keys: {KNOWN}"),
        ("QC: {}", f"unknown key 'QC': did you mean 'qc'? known keys: {KNOWN}"),
        ("n_comps: 5", f"unknown key 'n_comps': it belongs in section pca; known keys: {KNOWN}"),
        ("hvg: {seed: 1}", "it belongs at the top level; known keys: flavor, n_top_genes"),
        ("zzzzzzz: 1", f"unknown key 'zzzzzzz': known keys: {KNOWN}"),
        ("1: 2", f"unknown key '1': known keys: {KNOWN}"),
        ("scale: {centre: 1}", "unknown key 'centre' in scale: "),
        ("compute: {cluster: {worker: 1}}", "unknown key 'worker' in compute.cluster: "),
        # Types
        ("qc: 5", f"qc is 5; it must be a section with the keys {QC_KEYS}"),
        ("scale: [1]", "scale is a list; it must be a section with the keys zero_center, "),
        ("seed: {}", "seed is a section; it must be a whole number from 0 to 4294967295"),
        ("qc: {min_genes: true}", "qc.min_genes is true; it must be a whole number"),
        ("pca: {n_comps: 3.0}", "pca.n_comps is 3.0; it must be a whole number of at least 1"),
        ("pca: {zero_center: 1}", "pca.zero_center is 1; it must be true or false"),
        ("qc: {mt_prefix: null}", "qc.mt_prefix is empty (null); it must be text"),
        ("plates: [a]", "plates is a list; it must be text"),
        ("subset: {n_cells: '1e6'}", "this is read as text: write 1000000 without quotes)"),
        ("qc: {min_counts: '1,000'}", "write 1000 without quotes"),
        ("report: {colors: 5}", "report.colors is 5; it must be a list, each"),
        ("report: {colors: [plate, 2]}", "report.colors.1 is 2; it must be text"),
        # Bounds, of which config.yaml has all
        ("qc: {max_pct_mt: 140}", "qc.max_pct_mt is 140; it must be a number from 0 to 100"),
        ("qc: {min_genes: -1}", "qc.min_genes is -1; it must be a whole number of at least 0"),
        ("consensus: {min_plates: 0}", "consensus.min_plates: 0 is neither a number of plates"),
        ("consensus: {min_plates: 0%}", "write for example 3, 10% or [3, 10%]"),
        ("consensus: {min_plates: [3, 101%]}", "'101%' is neither"),
        ("consensus: {min_plates: []}", "[] is neither"),
        ("consensus: {min_plates: true}", "True is neither"),
        ("normalize: {target_sum: 0}", "normalize.target_sum is 0; it must be a number above"),
        ("normalize: {target_sum: .inf}", "normalize.target_sum is .inf;"),
        ("umap: {min_dist: .nan}", "umap.min_dist is .nan; it must be a number from"),
        ("doublets: {expected_doublet_rate: 5}", "is 5; it must be a number above 0 and below 1"),
        ("pseudobulk: {by: []}", "pseudobulk.by is a list; it must be a list of at least one"),
        ("outdir: ''", "outdir is ''; it must be text"),
        ("hvg: {flavor: v3}", "hvg.flavor is 'v3'; it must be seurat, cell_ranger or seur"),
        # Meaning
        ("qc: {min_genes: 9, max_genes: 2}", "min_genes (9) is above max_genes (2), so no cell"),
        ("qc: {min_counts: 9, max_counts: 2}", "qc: min_counts (9) is above max_counts (2)"),
        ("neighbors: {n_pcs: 301}", "neighbors.n_pcs (301) is above pca.n_comps (300)"),
        ("pca: {n_comps: 50}\nintegrate: {n_pcs: 51}", "n_pcs (51) is above pca.n_comps (50)"),
        ("neighbors: {n_pcs: 50}\nintegrate: {n_pcs: 20}", "(50) is above integrate.n_pcs (20)"),
        ("compute: {block_budget: 15MB}", "'15MB' is too small: give at least"),
        ("compute: {block_budget: lots}", "'lots' is not a size: write for example 256MB"),
        ("compute: {block_budget: 256}", "is 256; it must be text such as auto or 64MB"),
        ("compute: {memory_limit: 1MB}", "'1MB' is too little for a GPU: give"),
        ("compute: {memory_limit: x}", "'x' is not a size: write for example 20GB"),
        (
            "compute: {cluster: {kind: local-cpu, devices: 2}}",
            "compute.cluster: devices does not belong to a cluster of kind 'local-cpu'",
        ),
        (
            "compute: {cluster: {rmm_managed_memory: true, protocol: ucx}}",
            "compute.cluster: managed memory and protocol 'ucx' exclude each other: UCX hands GPU",
        ),
        ("compute: {cluster: {kind: existing}}", "needs either its address or its"),
        ("backend: cpu\ncompute: {cluster: {}}", "kind is local-gpu, but backend is cpu: change"),
        ("qc: {filter: a = 'b'}", "qc.filter: \"a = 'b'\" is not a query: compare with =="),
        ("qc: {filter: pass full}", "qc.filter: 'pass full' is not a query: write for"),
        ("qc: {filter: 1 == 1}", "qc.filter: '1 == 1' names no obs column"),
        ("outdir: https://x.org/a", "outdir: 'https://x.org/a': results can be copied to"),
        ("outdir: s3://", "outdir: 's3://': results can be copied to an address such as s3://"),
        ("source: {counts: values}", "counts is 'values'; write X, raw or layers/NAME, or for"),
        ("source: {marker: [1]}", "source.marker: [1] is no entry: write its token and its value"),
        ("source: {marker: [0.5, 1]}", "source.marker: [0.5, 1] is no entry: write its token"),
    ],
)
def test_refusals(data, message):
    text = refusal(yaml.safe_load(data))
    assert message in text
    assert "\n" not in text, "one problem is one sentence"


def test_values_of_the_command_line_are_numbers_flags_and_lists():
    """Snakemake gives all values of a section as text."""
    given = parse_config(
        [
            "leiden={resolution: 0.5}",
            "qc={min_genes: 200, max_genes: null, max_pct_mt: 5, gene_names: 7}",
            "consensus={min_plates: [3, 10%]}",
            "integrate={key: donor, theta: 1}",
            "doublets={filter: true}",
            "seed=7",
            "source={genes: g, counts: v, marker: null}",
        ]
    )
    assert given["leiden"] == {"resolution": "0.5"}, "else this test is needed no more"
    config = load(given)
    assert config.leiden.resolution == 0.5
    assert (config.qc.min_genes, config.qc.max_genes, config.qc.max_pct_mt) == (200, None, 5)
    assert config.qc.gene_names == "7", "the key is text"
    assert config.consensus.min_plates_entries == [3, "10%"]
    assert (config.integrate.key, config.integrate.theta) == (["donor"], 1)
    assert config.doublets.filter is True
    assert config.seed == 7
    assert config.source.lists == '{"genes": "g", "marker": null}'
    for text, marker in (("[0, -1.5]", [0, -1.5]), ("null", None)):
        given = parse_config([f"source={{marker: {text}}}"])
        assert load(given).source.marker == marker
    assert load({"consensus": {"min_plates": "3"}}).consensus.min_plates_entries == [3]


def test_every_problem_is_named():
    text = refusal({"seed": -1, "qc": {"min_gene": 1, "max_pct_mt": 101}})
    head, *problems = text.split("\n- ")
    assert head == "config has 3 problems:"
    assert [p.split()[0] for p in sorted(problems)] == ["qc.max_pct_mt", "seed", "unknown"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("qc: {min_gene: 1}\n", "c.yaml: unknown key 'min_gene' in qc"),
        ("seed: 1\nqc: {}\nseed: 2\n", "c.yaml: key 'seed' is given twice, on lines 1 and 3; keep"),
        ("qc:\n  min_genes: 1\n  min_genes: 2\n", "key 'min_genes' is given twice, on lines 2 and"),
        ("qc:\n\tmin_genes: 5\n", "c.yaml, line 2: not valid YAML (found character"),
        ("qc:\n\tmin_genes: 5\n", "; indent with spaces, not tabs"),
        ("qc: {\n", "not valid YAML"),
        ("- a\n- b\n", "c.yaml: a config is a list of 'key: value' lines, not list"),
        (b"\xff\xfe\x00", "c.yaml is not a text file: save the config as plain text (UTF-8)"),
        (None, "c.yaml: there is no such config file"),
    ],
)
def test_refused_files(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message in refusal(path)
    assert "is a folder: give a config file" in refusal(tmp_path)


def test_consensus_of_any_number_of_plates_by_default():
    for n_top_genes, n_chosen in ((2000, 3000), (5000, 7500)):
        config = load({"hvg": {"n_top_genes": n_top_genes}})
        assert config.consensus.n_top_genes_of(config.hvg) == n_chosen
        for n_plates in (1, 2, 1000):
            check_plates(config, [Plate(plate=f"p{i}", path="x") for i in range(n_plates)])
            assert config.consensus.min_plates_of(n_plates) == 1


@pytest.mark.parametrize(
    ("min_plates", "n_plates", "expected"),
    [
        *((3, 3, 3), (3, 500, 3), ("10%", 1, 1), ("10%", 10, 1), ("10%", 11, 2), ("10%", 500, 50)),
        *(("2.5%", 40, 1), ("2.5%", 41, 2), ("100%", 7, 7), (["10%", 3], 14, 3)),
        *((["10%", 3], 60, 6), ([3], 5, 3)),
    ],
)
def test_numbers_and_shares_of_plates(min_plates, n_plates, expected):
    config = load({"consensus": {"min_plates": min_plates}})
    assert config.consensus.min_plates_of(n_plates) == expected
    assert config.consensus.n_top_genes_of(config.hvg) is None  # all that agree
    both = load({"consensus": {"min_plates": min_plates, "n_top_genes": 10}}).consensus
    assert both.n_top_genes_of(config.hvg) == 10


def test_more_components_than_genes_are_chosen():
    plates = [Plate(plate="p", path="x"), Plate(plate="q", path="x")]
    few = {"consensus": {"n_top_genes": 40}}
    check_plates(load(few | {"pca": {"n_comps": 40}}), plates)
    with pytest.raises(ConfigError, match=r"at most 40 genes \(consensus.n_top_genes\)"):
        check_plates(load(few | {"pca": {"n_comps": 41}}), plates)


def test_more_plates_wanted_than_there_are():
    plates = [Plate(plate=name, path="x") for name in "abc"]
    three = load({"consensus": {"min_plates": 3}})
    check_plates(three, plates)
    with pytest.raises(ConfigError, match=r"min_plates is 3, but config/plates.tsv has 2 plates"):
        check_plates(three, plates[:2])
    with pytest.raises(ConfigError, match="has 1 plate: no gene could be chosen; give at most 1"):
        check_plates(three, plates[:1])


def test_a_column_cannot_be_mixed_and_stay_separate():
    with pytest.raises(ConfigError, match=r"label \(cell_line\) should stay separate, but"):
        load({"integrate": {"key": ["plate", "cell_line"]}})
    assert load({"integrate": {"key": ["cell_line"], "label": None}}).integrate.label is None


def test_harmony_and_doublets_that_other_rules_depend_on():
    assert load({}).harmony is None
    assert load({"integrate": {"use": False}}).harmony is None
    whole = load({"integrate": {"key": ["donor"], "theta": 1.5, "label": None}})
    assert whole.harmony == Harmony(key=["donor"], theta=1.5)
    doublets = [None, {}, {"filter": True}]
    assert [load({"doublets": d}).drops_doublets for d in doublets] == [False, False, True]


@pytest.mark.parametrize(
    "query, columns",
    [
        ("pass_filter == 'full'", ["pass_filter"]),
        ("b > 1 and a in ['x', 'y'] or b < 0", ["b", "a"]),
        ("a == 'it\\'s = `b`' | c == '\"' or d == \"=\"", ["a", "c", "d"]),
        ("`cell line` == 'A=B' & not `x-y`", ["cell line", "x-y"]),
        ("name.str.startswith('S') and n <= 3 and m >= 3 and k != 2", ["name", "n", "m", "k"]),
    ],
)
def test_query_columns(query, columns):
    assert query_columns(query) == columns
    assert load({"qc": {"filter": query}}).qc.filter == query


# Options of scripts -----------------------------------------------------------------------------


def parsed(option: str, **models: type[BaseModel]) -> dict[str, BaseModel]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_sections(parser, **models)
    args = parser.parse_args(shlex.split(option))
    return {name: read_section(args, name, model) for name, model in models.items()}


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@settings(max_examples=200, deadline=None)
@given(
    st.builds(QC, mt_prefix=text, gene_names=st.none() | text, min_cells=st.integers(0)),
    st.builds(Report, colors=st.lists(text)),
)
def test_sections_round_trip(qc, report):
    assert parsed(sections_option(qc=qc, report=report), qc=QC, report=Report) == {
        "qc": qc,
        "report": report,
    }


@pytest.mark.parametrize(
    "section",
    [
        QC(filter=None, min_genes=200, max_pct_mt=5.5, mt_prefix="mt-"),
        QC(filter="drug == \"a's\" and `x y` != '$HOME'"),
        HVG(flavor="cell_ranger"),
        PCA(zero_center=False),
        Report(colors=["-a", "b c"]),
        Report(colors=[]),
        Scale(zero_center=True, max_value=10),
    ],
)
def test_sections_round_trip_through_a_shell(section):
    shown = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {sections_option(it=section)}"],
        capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    assert parsed(shlex.join(shown.split("\0")[:-1]), it=type(section)) == {"it": section}
    assert parsed("", it=type(section)) == {"it": type(section)()}


def test_help_says_what_the_models_say():
    parser = argparse.ArgumentParser()
    add_sections(parser, pca=PCA, scale=Scale)
    shown = " ".join(parser.format_help().split())
    for name, model in (("pca", PCA), ("scale", Scale)):
        for key, field in model.model_fields.items():
            assert f"{name}.{key}: {' '.join(field.description.split())[:30]}" in shown
    assert shown.count("(default:") == len(PCA.model_fields) + len(Scale.model_fields)


def test_keys_out_of_bounds_are_named_as_in_the_config():
    with pytest.raises(ConfigError, match=r"^qc.max_pct_mt is 300; it must be a number from 0"):
        parsed("""--config '{"qc": {"max_pct_mt": 300}}'""", qc=QC)
    with pytest.raises(ConfigError, match=r"min_genes \(3\) is above max_genes \(2\)"):
        parsed("""--config '{"qc": {"min_genes": 3, "max_genes": 2}}'""", qc=QC)
    with pytest.raises(ConfigError, match=r"unknown key 'min_gene': did you mean 'min_genes'"):
        parsed("""--config '{"qc": {"min_gene": 3}}'""", qc=QC)


@pytest.mark.parametrize(
    ("given", "message"), [("{", "is no JSON"), ("[]", "by their names: qc"), ('{"hvg": {}}', "qc")]
)
def test_an_option_without_sections_is_refused(given: str, message: str):
    with pytest.raises(argparse.ArgumentError, match=message):
        parsed(shlex.join(["--config", given]), qc=QC)


# Generated files --------------------------------------------------------------------------------


def test_the_written_config_is_that_of_the_sections(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/README.md").touch()
    generate.main(["--write"])
    assert (tmp_path / "config/config.yaml").read_text() == TEXT, f"run `{generate.COMMAND}`"
    assert load(yaml.safe_load(TEXT)).model_dump() == DEFAULTS
    assert len(OFF.findall(TEXT)) == TEXT.count("To switch it on:") >= 5
    assert "| `qc.max_pct_mt` | `null` | Drop cells with more" in config_keys.key_table()


def test_a_config_outside_the_repository_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("mine")
    with pytest.raises(SystemExit):
        generate.main(["--write"])
    assert "is not the repository" in capsys.readouterr().err
    assert (tmp_path / "config/config.yaml").read_text() == "mine"


def test_every_key_is_described():
    def walk(model):
        for name, field in model.model_fields.items():
            assert field.description, name
            for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    walk(part)

    walk(Config)
    walk(Plate)


@pytest.mark.parametrize(
    ("data", "good"),
    [
        ({}, True),
        (DEFAULTS, True),
        ({"qc": None}, True),
        ({"scale": {"max_value": 3}, "pseudobulk": {}}, True),
        ({"qc": {"min_gene": 1}}, False),
        ({"seed": -1}, False),
        ({"scale": {"zero_center": "x"}}, False),
        ({"hvg": {"flavor": "x"}}, False),
        ({"leiden": {"resolution": 0}}, False),
        ({"pca": []}, False),
        ({"report": {"colors": [1]}}, False),
        ({"pseudobulk": {"by": []}}, False),
        ({"outdir": ""}, False),
        ({"normalize": {"target_sum": None}, "zz": 1}, False),
    ],
)
def test_schema_agrees_with_the_loader(data, good):
    assert fits_schema(data, "config") is good
    load(data) if good else refusal(data)


def fits_schema(data, name: str) -> bool:
    schema = yaml.safe_load(config_keys.schema_files()[f"{name}.schema.yaml"])
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).is_valid(data)


@pytest.mark.parametrize(
    "row, good",
    [
        ({"plate": "p.1-a_B", "path": "x"}, True),
        ({"plate": "p", "path": "x", "n_cells": 3, "donor": "d", "day": 2}, True),
        ({"plate": "p", "path": "x", "n_cells": 0}, False),
        ({"plate": "a b", "path": "x"}, False),
        ({"plate": ".p", "path": "x"}, False),
        ({"plate": "p"}, False),
    ],
)
def test_plate_schema(row, good):
    assert fits_schema(row, "plates") is good


def test_names_of_genes_may_come_from_a_file(tmp_path):
    path = tmp_path / "genes.txt"
    path.write_text("ISG15\n\nIFI6\tinterferon\nISG15\n")
    assert load({"consensus": {"also": str(path)}}).consensus.also == ["ISG15", "IFI6"]
    names = ["Trav14d-3/dv8", "AC012345.1", "CD3D"]
    assert load({"explore": {"genes": [*names, str(path)]}}).explore.genes == [
        *names,
        *("ISG15", "IFI6"),
    ]
    path.write_text("\n")
    with pytest.raises(ConfigError, match=r"explore.genes.*genes.txt' names no gene: write one"):
        load({"explore": {"genes": [str(path)]}})
    with pytest.raises(ConfigError, match=r"consensus.also.*'no.txt' cannot be read: name genes"):
        load({"consensus": {"also": ["no.txt"]}})
    with pytest.raises(ConfigError, match=r"5,001 genes are named: name 5,000 at most"):
        load({"explore": {"genes": [f"G{i}" for i in range(5001)]}})
