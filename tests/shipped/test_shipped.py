"""What is shipped is what README and docs/findings say: models, tables, snippets and the numbers they rest on."""

import re
import subprocess
from pathlib import Path

import findings
import numpy as np
import pandas as pd
import pytest
import torch

import compolens
from compolens import tables
from compolens.cli import main
from compolens.diagnosis import evidence, sentences
from compolens.diagnosis.groups import group
from compolens.foundation import digests, files
from compolens.models.jax_weights import reference_names

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("*/config.json"))
RELATIONS = sorted(p.parent for p in ZOO.glob("relations/*/config.json"))
FINISHED = [f for f in FOLDERS if tables.finished(f)]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FINDINGS = {path.stem: path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs" / "findings").glob("*.md")}


def groups(prefix):
    return {g.architecture: g for g in group([f for f in FINISHED if f.name.startswith(prefix)])}


def test_what_is_shipped_are_runs_of_the_file_and_the_findings_name_those_that_are_not():
    from compolens.cli.train import read_runs
    from compolens.zoo.folders import read_run, step_reached

    runs = read_runs(str(ZOO / "runs.py"))
    assert {f.name for f in FOLDERS} <= set(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name]
        assert tables.finished(folder) or step_reached(folder) > 0
    waiting = between("fuzzy_logic_and_sraven", "waiting", "/waiting")
    assert set(re.findall(r"`([\w-]+)`", waiting)) == set(runs) - {f.name for f in FOLDERS}


def test_trainings_of_the_papers_size_that_have_not_ended_stand_with_their_step():
    from compolens.cli.train import read_runs
    from compolens.zoo.folders import read_run, step_reached

    runs, told = read_runs(str(ZOO / "sraven_paper.py")), " ".join(FINDINGS["fuzzy_logic_and_sraven"].split())
    for folder in sorted(p.parent for p in ZOO.glob("sraven4/*/config.json")):
        assert read_run(folder) == runs[folder.name]
        standing = f"`{folder.name}` is in training, at step {step_reached(folder):,} of {runs[folder.name].steps:,}"
        assert (standing in told) == (not tables.finished(folder))


@pytest.mark.parametrize("folder", FINISHED, ids=lambda f: f.name)
def test_weights_and_scores_of_a_shipped_model_are_those_of_one_training_and_its_tables_are_fresh(folder):
    assert {"weights.safetensors", "scores.json"} <= digests.kept(folder).keys() and not digests.damaged(folder)
    continuous = "latent_code" in tables.names(folder)
    for probe in ("generalization", "patching", *(["latent_code"] if continuous else ["attention_code", "latent_geometry"])):
        assert tables.why_not(folder, probe) == ""


@pytest.mark.parametrize("folder", [f for f in FINISHED if f.name.endswith("-0")], ids=lambda f: f.name)
def test_a_shipped_model_scores_what_its_card_says(folder):
    """One seed of each setting; the weights of the others are those that their cards are about."""
    trained = compolens.load(folder)
    scores = files.read_json(folder / "scores.json")
    fuzzy = type(trained.task).__name__ == "FuzzyLogic"
    for split in ("test", "ood"):
        n = 2048 if fuzzy and split == "ood" else 512  # that score has a heavy tail: a few hundred episodes can be .15 off
        fresh = compolens.evaluate(trained.model, trained.task, split, n, "check", batch=512 if fuzzy else 64)
        assert fresh.score == pytest.approx(scores[split]["score"], abs=5 * max(scores[split]["se"], 0.004))
    assert ("latent_code" in tables.names(folder)) == ("continuous" in trained.task.code_kinds.values())


@pytest.mark.filterwarnings("ignore::compolens.tables.StaleTable")
def test_the_page_says_where_the_code_can_be_read():
    folders = {a: [ZOO / f"F-{a}-{s}" for s in range(5)] for a in ("softmax", "hypernetwork")}
    found = {a: tables.gather(of, "latent_code").query("step == 6000 and metric == 'r2'") for a, of in folders.items()}
    mean = {a: frame[frame["dimension"] == "mean"] for a, frame in found.items()}

    def r2(architecture, site, role, fit, split, control=""):
        rows = mean[architecture].query("site == @site and role == @role and fit == @fit and split == @split")
        return f"{rows.loc[rows['control'] == control, 'value'].mean():.2f}"[1:]

    last = ("softmax", "blocks.2.hook_resid_post", "readout")
    here = [r2(*last, "fitted on train", split) for split in ("test", "ood")]
    raw = mean["softmax"].query("control == 'raw input' and fit == 'fitted on train' and split == 'ood'")["value"].mean()
    plain = " ".join(FINDINGS["hyperteacher"].split())
    assert f"has an R² of {here[0]} there and {here[1]} on held-out ones" in plain
    assert f"Fitted within the held-out compositions it has {r2(*last, 'within', 'ood')}." in plain
    assert f"the raw input moments ({raw:.2f})".replace("(0", "(") in plain
    explicit = r2("hypernetwork", "hook_code", "all", "fitted on train", "ood")
    assert f"The explicit code of the hypernetwork transformer is ({explicit})." in plain


def test_weights_along_the_way_are_kept_for_one_seed():
    for name in ("F-softmax-0", "F-hypernetwork-0"):
        steps = compolens.zoo.kept_steps(ZOO / name)
        assert len(steps) == 7 and steps[-1] == 6000
        along = [
            compolens.evaluate((m := compolens.load(ZOO / name, s)).model, m.task, "test", 256, "check").score for s in steps
        ]
        assert along == sorted(along)
        table = tables.read(ZOO / name, "generalization")
        assert sorted(table["step"].unique()) == steps


def test_the_effect_at_size_f_is_what_the_findings_claim():
    softmax, hypernetwork = (groups("F-")[name] for name in ("SoftmaxTransformer", "HypernetworkTransformer"))
    assert len(softmax.folders) == len(hypernetwork.folders) == 5
    assert evidence.score(hypernetwork, "test").value >= 0.99
    assert evidence.score(hypernetwork, "ood").value >= 0.95
    assert evidence.score(softmax, "test").value >= 0.95
    gap = sentences.compare(hypernetwork, softmax)
    assert gap.evidence[0].value >= 0.10 and gap.evidence[0].lo > 0.05


def test_the_table_of_shipped_models_is_the_commands_output(capsys):
    assert main(["models", *map(str, FOLDERS), "--summary"]) == 0
    expected = between("index", "shipped: compolens models trained_models/*-? --summary", "/shipped")
    assert capsys.readouterr().out.strip() == expected


# ---- relations: is it sparsity, or is it transfer? -------------------------------------------------------------------
def test_every_cell_of_the_comparison_is_shipped_scores_what_it_says_and_has_fresh_tables():
    from compolens.cli.train import read_runs
    from compolens.zoo.folders import read_run

    runs = read_runs(str(ZOO / "relations.py"))
    assert {f.name for f in RELATIONS} == set(runs)
    for folder in RELATIONS:
        assert read_run(folder) == runs[folder.name]
        moved = runs[folder.name].architecture.transfer is not None
        pruned = folder.name.startswith(("2L", "images")) and "-relative-" in folder.name
        probes = ["generalization", *(["transfer"] if moved else []), *(["activation_sparsity"] if pruned else [])]
        for probe in probes:
            assert tables.why_not(folder, probe) == "", (folder.name, probe)
        if folder.name.endswith("-0"):
            trained, scores = compolens.load(folder), files.read_json(folder / "scores.json")
            fresh = compolens.evaluate(trained.model, trained.task, "test", 512, "check").score
            assert fresh == pytest.approx(scores["test"]["score"], abs=0.05)


def cell(name, split="test"):
    """Scores on training relations, one per seed, or on held-out ones."""
    return [files.read_json(ZOO / "relations" / f"{name}-{s}" / "scores.json")[split]["score"] for s in range(3)]


def test_what_transfer_does_on_vectors_in_every_seed():
    for layers in ("1L", "2L"):  # a hidden target without place or bias says nothing, whatever the depth
        assert all(abs(score) < 1e-6 for score in cell(f"{layers}-sparse-none"))
    assert all(score < 0.02 for score in cell("1L-sparse-output"))  # as printed, one layer moves content, not a rule
    assert all(score > 0.5 for score in cell("1L-sparse-relative"))
    assert all(score > 0.6 for score in cell("2L-sparse-output") + cell("2L-positions-sparse-output"))
    for layers in ("1L", "1L-positions", "2L", "2L-positions"):  # the threshold does nothing
        for transfer in ("output", "relative"):
            assert cell(f"{layers}-sparse-{transfer}") == pytest.approx(cell(f"{layers}-linear-{transfer}"), abs=0.02)
    for transfer in ("output", "relative"):  # but silencing nine of ten scores costs a lot
        for full, sparser in zip(cell(f"2L-sparse-{transfer}"), cell(f"2L-sparser-{transfer}"), strict=True):
            assert sparser < full - 0.1


def ends(scores):
    """Least and most of scores, as pages show them; one number where they are the same."""
    lo, hi = (findings.shown(one, 2) for one in (min(scores), max(scores)))
    return lo if lo == hi else f"{lo} to {hi}"


def test_the_page_tells_scores_on_held_out_relations():
    page = " ".join(FINDINGS["sparsity_or_transfer"].split())
    held_out = {
        "stays at 0, and two reach {}.": cell("2L-sparse-output", "ood") + cell("2L-linear-output", "ood"),
        "Relative transfer gives {} with one layer": cell("1L-sparse-relative", "ood") + cell("1L-linear-relative", "ood"),
        "with one layer and {} with two;": cell("2L-sparse-relative", "ood") + cell("2L-linear-relative", "ood"),
        "softmax attention with it {} and": cell("1L-softmax-relative", "ood"),
        "to .83 and {}. On training": cell("2L-softmax-relative", "ood"),
        "two layers reach {} (relative;": cell("2L-sparser-relative", "ood") + cell("2L-positions-sparser-relative", "ood"),
        "they reach {} without position codes": cell("2L-sparser-output", "ood"),
        "and {} with them (": cell("2L-positions-sparser-output", "ood"),
        "with position codes reach {} without transfer": cell("2L-positions-softmax-none", "ood"),
        "With relative transfer they reach {} (": cell("2L-positions-softmax-relative", "ood"),
    }
    training = {
        "on training relations {}). With the printed": cell("2L-sparser-relative") + cell("2L-positions-sparser-relative"),
        "without position codes (training {})": cell("2L-sparser-output"),
        "with them (training {})": cell("2L-positions-sparser-output"),
        "without transfer (on training relations {})": cell("2L-positions-softmax-none"),
        "they learn training relations ({})": cell("2L-positions-softmax-output"),
        "(training {}). With one layer, position codes": cell("2L-positions-softmax-relative"),
    }
    for sentence, scores in (held_out | training).items():
        assert sentence.format(ends(scores)) in page, sentence
    fallen = sorted(findings.shown(one, 2) for one in cell("2L-positions-softmax-output", "ood"))
    assert "fall to {}, {} and {} on held-out ones".format(*fallen) in page


def test_the_page_tells_scores_on_held_out_images():
    attentions = {"soft threshold": "sparse", "no threshold (ξ = 0)": "linear", "softmax": "softmax"}
    for row, name in attentions.items():
        found = {
            (split, transfer): [
                rows[rows["split"] == split]["value"].item() for rows in (images(f"{name}-{transfer}-{s}") for s in range(3))
            ]
            for split in ("test", "ood")
            for transfer in ("none", "output", "relative")
        }
        told = findings.cells(FINDINGS["sparsity_or_transfer"], "images, R² on held-out relations", row)
        minus = "\N{MINUS SIGN}"
        assert told == [
            *(
                " ".join(findings.shown(v, 2) for v in found["ood", t]).replace("-", minus)
                for t in ("none", "output", "relative")
            ),
            " ".join(findings.shown(v) for v in found["test", "relative"]),
        ]


def images(name):
    """R² over all episodes of a model of images, by split."""
    rows = tables.read(ZOO / "relations" / f"images-{name}", "generalization")
    return rows[(rows["metric"] == "R²") & (rows["composition"] == "all") & (rows["control"] == "")]


def test_the_table_of_relations_is_the_commands_output(capsys):
    assert main(["models", str(ZOO / "relations"), "--summary"]) == 0
    start = "relations: compolens models trained_models/relations --summary"
    expected = between("sparsity_or_transfer", start, "/relations")
    assert capsys.readouterr().out.strip() == expected


def between(page, start, end):
    """What a page of the findings has between two comments."""
    return FINDINGS[page].split(f"<!-- {start} -->")[1].split(f"<!-- {end} -->")[0].strip()


def test_the_readmes_snippet_runs(monkeypatch, capsys):
    monkeypatch.chdir(REPOSITORY)
    exec(re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0], {})
    score, rest = capsys.readouterr().out.split(" ", 1)
    assert float(score) > 0.9 and "256, 1, 8" in rest
    said = [line.split("(")[0].split() for line in re.findall(r"^# (\w+Transformer .*)", README, re.MULTILINE)]
    assert said and said == [line.split() for line in rest.splitlines()[-len(said) :]]


def test_the_snippet_brings_weights_in(monkeypatch, tmp_path):
    page = (REPOSITORY / "docs" / "architectures.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^:caption: bring_weights.py\n\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    sizes = {"n_layers": 4, "d_model": 128, "n_heads": 16, "d_head": 4, "d_value": 4, "d_mlp": 256}
    source = compolens.HYLA(**sizes, n_ctx=36).build(d_in=8, d_out=8)
    own = dict(source.named_parameters())
    names = reference_names(source)
    arrays = {theirs: own[ours].detach().permute(*np.argsort(axes)).numpy() for ours, (theirs, axes) in names.items()}
    np.savez(tmp_path / "parameters.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    seen = {}
    exec(snippet, seen)
    x = torch.eye(8)[torch.arange(36) % 8][None]
    torch.testing.assert_close(seen["model"](x), source(x))


def test_everything_the_readme_links_to_exists_and_it_is_short():
    assert len(README.splitlines()) <= 200
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("http") or (REPOSITORY / link).exists(), link
    prose = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= anchors


def test_every_command_of_the_readme_and_of_the_findings_exists():
    from compolens.cli import COMMANDS

    commands = [c for page in (README, *FINDINGS.values()) for c in re.findall(r"^compolens (\w+)", page, re.MULTILINE)]
    assert commands and set(commands) <= set(COMMANDS)


def test_the_findings_say_how_their_figures_are_drawn():
    drawn = subprocess.run(
        ["make", "-n", "figures", "PRINT="], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    known = {line.removeprefix(".venv/bin/").rstrip() for line in drawn.splitlines() if " analyze " in line}
    assert len(known) > 20
    for name, page in FINDINGS.items():
        said = set(re.findall(r"^compolens analyze .*", page, re.MULTILINE))
        assert said <= known, f"{name}: not as `make figures` draws it"
        inline = {Path(f).relative_to("../..") for f in re.findall(r"^!\[[^\]]*\]\((\S+\.png)\)", page, re.MULTILINE)}
        for figure in inline:
            assert any(figure.stem in line.split() and line.endswith(f"--out {figure.parent}") for line in said), figure


# ---- what the findings say that their data do not show ---------------------------------------------------------------
def test_at_matched_training_score_half_of_the_effect_is_left():
    gaps = []
    for seed in range(5):
        softmax, other = (pd.read_csv(ZOO / f"F-{name}-{seed}" / "history.csv") for name in ("softmax", "hypernetwork"))
        last = softmax.iloc[-1]
        gaps.append(np.interp(last["test"], other["test"], other["ood"]) - last["ood"])
    assert np.mean(gaps) == pytest.approx(0.084, abs=0.0006)


def test_softmax_attention_declines_on_fuzzy_logic_in_two_seeds_and_not_in_the_third():
    along = [pd.read_csv(ZOO / f"fuzzy-softmax-{seed}" / "history.csv") for seed in range(3)]
    assert [frame["step"][frame["ood"].idxmax()] for frame in along[:2]] == [10_000, 7_500]
    assert [frame["ood"].max() for frame in along[:2]] == pytest.approx([0.77, 0.66], abs=0.006)
    assert [frame["ood"].iloc[-1] for frame in along[:2]] == pytest.approx([0.69, 0.56], abs=0.006)
    halves = along[2]["ood"][:10].mean(), along[2]["ood"][10:].mean()
    assert len(along[2]) == 20 and halves == pytest.approx((0.694, 0.705), abs=0.0006)
    late = [frame[frame["step"] >= 10_000] for frame in along]
    trends = [frame["step"].rank().corr(frame["ood"].rank()) for frame in late]
    assert trends == pytest.approx([-0.73, -0.74, 0.34], abs=0.006)


def test_where_the_rule_is_read_out_addition_and_subtraction_are_not_told_apart():
    recalls = {"addition": [], "subtraction": []}
    for folder in sorted(ZOO.glob("sraven3-*")):
        rows = tables.at_last_step(tables.read(folder, "attention_code"))
        rows = rows[(rows["split"] == "ood") & (rows["control"] == "") & (rows["role"] == "row mates")]
        rows = rows[(rows["label"] == "rule") & (rows["shown"] == "as trained")]
        whole = rows[rows["metric"] == "balanced accuracy"]
        best = rows[(rows["metric"] == "recall") & (rows["site"] == whole.loc[whole["value"].idxmax(), "site"])]
        for name, found in recalls.items():
            found += best.loc[best["class"] == name, "value"].tolist()
    assert {len(found) for found in recalls.values()} == {11}
    ends = [end(found) for found in recalls.values() for end in (min, max)]
    assert ends == pytest.approx([0.21, 0.43, 0.25, 0.41], abs=0.006)


def test_at_one_site_early_in_training_the_code_is_decoded_and_followed_as_the_findings_say():
    rows = tables.read(ZOO / "F-softmax-0", "inference_or_execution")
    rows = rows[(rows["step"] == 1000) & (rows["control"] == "") & (rows["split"] == "train") & (rows["role"] == "context")]
    here = rows[rows["site"] == "blocks.0.hook_resid_post"].set_index("metric")["value"]
    assert (here["left-out R²"], here["recovered"]) == pytest.approx((0.68, 0.22), abs=0.006)


@pytest.mark.parametrize("name", ["F-softmax-0", "F-softmax-1", "F-softmax-2", "fuzzy-softmax-0", "fuzzy-softmax-1",
                                  "fuzzy-softmax-2", "sraven3-softmax-0"])  # fmt: skip
def test_the_dual_model_holds_to_rounding_in_trained_models_and_in_their_untrained_controls(name):
    table = tables.read(ZOO / name, "dual_model")
    for control in ("", "untrained"):
        worst = table[table["control"] == control].groupby("metric")["value"].max()
        assert worst["relative distance"] < 5e-7 and worst["layer distance"] < 5e-6
    own = table[table["control"] == ""]
    assert own[own["metric"] == "autograd distance"]["value"].max() < 2e-6
    assert (
        own[own["metric"] == "relative distance"]["layer"].nunique()
        == files.read_json(ZOO / name / "config.json")["run"]["architecture"]["n_layers"]
    )
