"""The report is one page that opens offline, cards first, and every clause of its diagnosis leads to the number behind it."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from compolens import tables
from compolens.cli import main
from compolens.diagnosis import sentences
from compolens.figures import plotlyjs
from compolens.report.attention import position_names
from compolens.report.drawn import shared
from compolens.report.pages import coded

PLOTLY = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
"""sha256 of plotly-cartesian.min.js of plotly.js-cartesian-dist-min 4.1.1, as npm has it."""
MOST = 2_000_000
"""Bytes of a page about two models."""

BROWSERS = [found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))][:1]


@pytest.fixture(scope="module")
def measured(tiny_models, tmp_path_factory):
    root = tmp_path_factory.mktemp("measured")
    for name, folder in tiny_models.items():
        shutil.copytree(folder, root / name, ignore=shutil.ignore_patterns("tables"))
    assert main(["probe", "generalization", "latent_code", "patching", str(root), "--episodes", "96"]) == 0
    return root


@pytest.fixture(scope="module")
def page(measured):
    path = measured / "report.html"
    assert main(["report", str(measured), "-o", str(path)]) == 0
    return path.read_text(encoding="utf-8")


class Anchors(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.targets, self.loaded, self.files, self.named = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a" and found.get("href", "").startswith("#"):
            self.targets.append(found["href"][1:])
        if tag in ("script", "link", "img", "iframe"):
            self.loaded += [found[k] for k in ("src", "href") if k in found and not found[k].startswith("data:")]
        if tag == "a" and not found["href"].startswith("#"):
            self.files.append(found["href"])
        if "role" in found:
            self.named.append((found["role"], found.get("aria-label")))


def read(page):
    anchors = Anchors()
    anchors.feed(page)
    return anchors


def held(page, name):
    """What the page holds of a figure, as JSON."""
    return json.loads(re.search(rf'<script type="application/json" id="data-{name}">(.*?)</script>', page, re.S).group(1))


def test_page_loads_nothing_from_anywhere_and_inlines_plotly_once(page):
    assert read(page).loaded == []
    assert len(re.findall(r"\* plotly\.js \(cartesian - minified\) v\d", page)) == 1
    own = page.replace(plotlyjs.script(), "")
    assert not re.findall(r"https?://", own)


def test_the_plotly_that_is_shipped_is_npms_and_has_its_licence_and_no_upload(page):
    assert hashlib.sha256(plotlyjs.BUNDLE.read_bytes()).hexdigest() == PLOTLY
    assert "MIT License" in (plotlyjs.BUNDLE.parent / "LICENSE").read_text(encoding="utf-8")
    assert "showSendToCloud: false" in page


def test_a_page_about_two_models_is_small(page):
    assert len(page.encode()) <= MOST


def test_cards_come_first_and_everything_else_is_folded(page):
    cards = re.findall(r'<article class="card".*?</article>', page, re.S)
    assert len(cards) == 2 and page.index("<article") < page.index("<details")
    for card in cards:
        said = card[: card.index("<details")]
        assert said.count("<li>") - said.count('class="swatch') <= 3
        assert re.search(r'<span class="standing [\w-]+" title="[^"]+">[\w ]+</span>', said)
        assert "Evidence: " in card
    rest = page[page.index("<section>") : page.index("</main>")]
    assert set(re.findall(r"<section>\s*<(\w+)", rest)) == {"details"}
    assert not re.search(r"<section>\s*<details[^>]* open", rest)


def test_every_row_on_the_page_is_cited_and_every_table_is_a_link(page, measured):
    anchors = read(page)
    rows = re.findall(r'<tr id="([^"]+)"', page)
    assert 0 < len(rows) < 200
    assert set(rows) >= {target for target in anchors.targets if target.count("--") == 2}
    tabled = [row.rpartition("--")[0] for row in rows]
    assert {t for t in anchors.targets if t.count("--") == 1} <= set(tabled)
    assert {f"{name}/tables/{t}.csv" for name in ("softmax", "hypernetwork") for t in ("generalization", "latent_code")} <= {
        *anchors.files
    }
    assert all((measured / link).is_file() for link in anchors.files)


def test_what_was_not_drawn_is_one_closed_line_grouped_by_probe(page):
    (fold,) = re.findall(r'<details id="not-drawn">(.*?)</details>', page, re.S)
    commands = re.findall(r"<code>(compolens probe [^<]*) FOLDER…</code> draws", fold)
    assert len(commands) == len(set(commands)) > 1
    (both,) = [line for line in fold.split("<li") if "probe latent_geometry FOLDER" in line]
    assert "latent_maps" in both and "rule_similarity" in both


def test_every_figure_has_a_name_for_screen_readers(page):
    named = read(page).named
    assert len(named) > 4
    assert all(role == "img" and name for role, name in named)


def test_attention_keeps_its_weights_masks_and_roles(page, measured):
    import compolens
    from compolens.activations.streams import draw

    trained = compolens.load(measured / "softmax")
    episode = next(iter(draw(trained.task, "ood", 1, 0)))
    _, cache = trained.model.run_with_cache(episode.tokens)
    (found,) = [held(page, f"attention-{i}") for i in range(2) if _summary(page, f"attention-{i}").startswith("softmax <")]
    one = found["maps"][-1]
    code = cache[f"blocks.{int(one['layer']) - 1}.attn.hook_code"][0, ..., one["head"]].detach().numpy()
    steps = np.frombuffer(base64.b64decode(one["data"]), np.uint8).reshape(code.shape)
    masked = steps == found["masked"]
    shown = one["low"] + steps * (one["high"] - one["low"]) / found["levels"]
    assert abs(shown - code)[~masked].max() <= (one["high"] - one["low"]) / found["levels"]
    mask = trained.model.blocks[0].attn.mask
    assert (masked == ~mask.numpy()).all() and masked.any()
    assert {role for role, _ in found["key"]} == {"context", "readout"}


def _summary(page, name):
    """The last summary above a figure."""
    return page[: page.index(f'id="{name}"')].rpartition("<summary>")[2]


def test_commands_in_sentences_are_code_and_everything_else_is_escaped():
    assert coded("type `a <b>` & see") == "type <code>a &lt;b&gt;</code> &amp; see"
    assert coded("a lone ` stays") == "a lone ` stays"


def test_positions_are_named_by_role_and_by_other_where_none_has_them():
    names = position_names(5, {"context": [0, 1, 2, -1], "readout": [-1]})
    assert names == [("context", 1), ("context", 2), ("context", 3), ("other", 1), ("readout", 1)]


def test_a_quantity_has_one_number_on_the_page(page, measured):
    """The table of models shows the scores that the cards speak of, not those that the end of training left."""
    frame = tables.at_last_step(tables.read(measured / "softmax", "generalization"))
    own = frame[(frame["metric"] == "score") & (frame["composition"] == "all") & (frame["control"] == "")]
    row = re.search(r"<tr><td>softmax</td>.*?</tr>", page).group(0)
    for split in ("test", "ood"):
        assert f"<td>{own[own['split'] == split]['value'].iloc[0]:.3f}</td>" in row


def test_every_link_of_the_page_leads_somewhere_on_it(page):
    anchors = read(page)
    assert len(anchors.ids) == len(set(anchors.ids))
    assert len(anchors.targets) > 20
    assert set(anchors.targets) <= set(anchors.ids)


def test_every_clause_carries_a_number_that_stands_in_a_table(measured):
    said = sentences.sentences(tables.find([measured]))
    assert {who.split(" on ")[0] for who, _ in said} >= {"SoftmaxTransformer", "HypernetworkTransformer", "Compared"}
    for _, clauses in said:
        for clause in clauses:
            assert clause.evidence
            for evidence in clause.evidence:
                if "difference" in evidence.where:
                    continue
                frame = tables.read(measured / evidence.models[0].split("/")[-1], evidence.table)
                frame = frame[frame["step"] == frame["step"].max()]
                for column, value in evidence.where.items():
                    frame = frame[frame[column].astype(str) == value]
                if "composition" in frame:
                    frame = frame[frame["composition"] == "all"]
                assert frame["value"].tolist() == [pytest.approx(evidence.value, abs=1e-5)]


def test_figures_on_the_page_hold_the_plotted_numbers(page, measured):
    figure = held(page, "plot-who_generalizes")
    shown = {y for trace in figure["data"] if trace.get("mode") == "markers" for y in _numbers(trace["y"])}
    frame = tables.read(measured / "softmax", "generalization")
    wanted = frame[(frame["metric"] == "score") & (frame["composition"] == "all") & (frame["control"] == "")]
    for split in ("test", "ood"):
        value = wanted[wanted["split"] == split]["value"].iloc[0]
        assert any(abs(value - y) < 1e-6 for y in shown)


def _numbers(y):
    if isinstance(y, list):
        return y
    return np.frombuffer(base64.b64decode(y["bdata"]), dtype=y["dtype"]).tolist()


def test_two_models_claim_no_difference_with_one_seed(measured):
    (text,) = [c.text for who, clauses in sentences.sentences(tables.find([measured])) if who == "Compared" for c in clauses]
    assert "no difference is claimed" in text


def test_a_stale_table_is_said_on_the_page_and_its_model_left_out(measured, tmp_path):
    copied = tmp_path / "models"
    shutil.copytree(measured, copied)
    weights = copied / "softmax" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    (copied / "softmax" / "tables" / "latent_code.csv").unlink()
    assert main(["report", str(copied), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "softmax: left out: " in page and "generalization.csv is stale: the weights changed since it was measured" in page
    assert "HypernetworkTransformer on " in page and "SoftmaxTransformer on " not in page


def test_nothing_measured_names_the_command(tiny_models, tmp_path, capsys):
    shutil.copytree(tiny_models["softmax"], tmp_path / "m", ignore=shutil.ignore_patterns("tables"))
    assert main(["report", str(tmp_path / "m"), "-o", str(tmp_path / "r.html")]) == 2
    assert "compolens probe generalization latent_code" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("browser", BROWSERS)
def test_a_browser_draws_every_open_figure_offline(browser, measured, page, tmp_path):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"]
    address = f"file://{measured / 'report.html'}"
    for opened, least in (
        ("", 1),
        ("#figures", 2),
        ("#attention", 2),
    ):  # the decisive one, and the first one of what is opened
        shown = subprocess.run([browser, *flags, address + opened], capture_output=True, text=True, check=True).stdout
        assert shown.count('data-drawn="1"') >= least
        assert shown.count('class="main-svg"') >= least
        assert 'data-ready="' in shown


def test_a_definition_that_several_captions_share_is_said_once():
    entries = [
        {"caption": "Bars: seeds. Shown at 0.5 R². A gap is a loss."},
        {"caption": "Lines. A gap is a loss."},
        {"caption": ""},
    ]
    assert shared(entries) == ["A gap is a loss."]
    assert [entry["caption"] for entry in entries] == ["Bars: seeds. Shown at 0.5 R².", "Lines.", ""]
