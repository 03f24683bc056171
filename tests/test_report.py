"""The report is one page that opens offline, and every clause of its verdict leads to the number behind it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from compolens import tables
from compolens.cli import main
from compolens.diagnosis import sentences

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
        self.ids, self.targets, self.loaded = [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a" and found.get("href", "").startswith("#"):
            self.targets.append(found["href"][1:])
        if tag in ("script", "link", "img", "iframe"):
            self.loaded += [found[k] for k in ("src", "href") if k in found]


def test_page_loads_nothing_from_anywhere_and_inlines_plotly_once(page):
    anchors = Anchors()
    anchors.feed(page)
    assert anchors.loaded == []
    assert len(re.findall(r"\* plotly\.js v\d", page)) == 1


def test_every_link_of_the_page_leads_somewhere_on_it(page):
    anchors = Anchors()
    anchors.feed(page)
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
    script = page[page.rindex("const figures") :]
    text = re.search(r'"plot-who_generalizes": (\{.*?\}), "plot-', script).group(1)
    figure = json.loads(text)
    shown = {y for trace in figure["data"] if trace.get("mode") == "markers" for y in _numbers(trace["y"])}
    frame = tables.read(measured / "softmax", "generalization")
    wanted = frame[(frame["metric"] == "score") & (frame["composition"] == "all") & (frame["control"] == "")]
    for split in ("test", "ood"):
        value = wanted[wanted["split"] == split]["value"].iloc[0]
        assert any(abs(value - y) < 1e-6 for y in shown)


def _numbers(y):
    if isinstance(y, list):
        return y
    import base64

    import numpy as np

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
    shown = subprocess.run(
        [browser, *flags, f"file://{measured / 'report.html'}"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert shown.count('data-drawn="1"') >= 4  # three analyses, the split, the first attention map
    assert shown.count("main-svg") >= 4
