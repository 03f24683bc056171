"""The page in a real, headless Chromium: every control is used, nothing fails, no other host is asked."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.parse import parse_qs, urlparse
from urllib.request import urlopen

import pytest

from compolens import show
from compolens.cli import main
from compolens.explore.explorer import DEPENDS, Explorer
from compolens.foundation.configs import ConfigError

pytest.importorskip("dash")

from compolens.explore.page import serve
from compolens.explore.page.layout import PANELS, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 120_000
"""Milliseconds: machines that run tests may be busy."""
WATCHED = """
import os, sys
def watch(event, given):
    if event == "socket.connect" and isinstance(given[1], tuple):
        print("connects to", given[1][0], file=sys.stderr, flush=True)
sys.addaudithook(watch)
from compolens import show
from compolens.cli import main
sys.exit(main(["explore", *sys.argv[1:]]))
"""


# ---- without a browser -----------------------------------------------------------------------------------------------
def test_the_page_is_painted_before_torch_is_there():
    script = "import sys; import compolens.explore.page.serve; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_every_script_comes_from_the_server(tiny_models):
    client = serve.application(Explorer(tiny_models.values())).server.test_client()
    text = client.get("/").text
    links = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert any("dash_renderer" in link for link in links) and any("keys.js" in link for link in links)
    for link in links:
        assert link.startswith("/") and client.get(link).status_code == 200, link


def test_every_view_has_its_panel(tiny_models):
    assert set(PANELS) == set(DEPENDS)
    text = str(page(list(tiny_models)))
    assert all(f"panel-{name}" in text for name in PANELS)


def test_a_taken_port_is_an_error_that_says_what_to_type(tiny_models, capsys):
    explorer = Explorer(tiny_models.values())
    made = serve.server(explorer)
    with pytest.raises(ConfigError, match=r"port \d+ is taken; name another with --port"):
        serve.server(explorer, made.server_port)
    made.server_close()
    assert main(["explore", "no/such/folder"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_folder_whose_description_is_damaged_is_told_before_the_page_is_served(tiny_models, tmp_path, capsys, monkeypatch):
    served = []
    monkeypatch.setattr(serve, "run", lambda explorer, *_: served.append(list(explorer.folders)))
    for name in ("whole", "damaged"):
        shutil.copytree(tiny_models["softmax"], tmp_path / name)
    (tmp_path / "damaged" / "config.json").write_text("{")
    assert main(["explore", str(tmp_path)]) == 0 and served == [["whole"]]
    told = capsys.readouterr().err
    assert told.startswith("damaged is left out: ") and "config.json is not valid JSON" in told
    assert main(["explore", str(tmp_path / "damaged")]) == 2 and len(served) == 1
    assert "config.json is not valid JSON" in capsys.readouterr().err.splitlines()[-1]


def test_of_a_training_that_has_not_ended_no_page_is_served(tiny_models, tmp_path, capsys, monkeypatch):
    served = []
    monkeypatch.setattr(serve, "run", lambda explorer, *_: served.append(list(explorer.folders)))
    begun = shutil.copytree(tiny_models["softmax"], tmp_path / "begun")
    (begun / "scores.json").unlink()
    assert main(["explore", str(begun)]) == 2 and not served
    assert "the same `compolens train` command goes on" in capsys.readouterr().err
    assert main(["explore", str(begun), str(tiny_models["softmax"])]) == 0 and served == [["softmax"]]
    assert "begun: not finished, left out" in capsys.readouterr().err


def test_a_notebook_has_the_page_in_a_cell_until_it_is_stopped(tiny_models):
    cell = show.explore(tiny_models["softmax"].parent, height=500)
    assert cell.address in cell._repr_mimebundle_()["text/html"] and 'height="500"' in cell._repr_mimebundle_()["text/html"]
    with urlopen(cell.address) as answer:
        assert b"compolens explore" in answer.read()
    cell.stop()
    with pytest.raises(URLError):
        urlopen(cell.address)


# ---- with one --------------------------------------------------------------------------------------------------------
def controls_of(part):
    """The ids of everything on the page that can be used, as text."""
    found = set()
    kind, own = type(part).__name__, getattr(part, "id", None)
    if kind in ("Dropdown", "Input", "RadioItems", "Button", "Slider", "Checklist", "Graph", "Clipboard", "Summary"):
        named = own or getattr(part, "target_id", None) or kind
        found.add("/".join(map(str, named.values())) + f" {kind}" if isinstance(named, dict) else str(named))
    children = getattr(part, "children", None)
    for child in children if isinstance(children, list | tuple) else [children]:
        if hasattr(child, "to_plotly_json"):
            found |= controls_of(child)
    return found


class Reader:
    """Someone who reads the page: uses controls, and waits until what they changed is shown."""

    def __init__(self, browser, address):
        self.context = browser.new_context(viewport={"width": 1280, "height": 420}, accept_downloads=True)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
        self.page, self.address, self.used = self.context.new_page(), address, set()
        self.page.set_default_timeout(PATIENCE)
        self.asked, self.failed, self.pending = [], [], set()
        self.page.on("request", self._asks)
        self.page.on("requestfinished", lambda request: self.pending.discard(request))
        self.page.on("requestfailed", lambda request: self.pending.discard(request))
        self.page.on("response", lambda answer: answer.status >= 400 and self.failed.append(f"{answer.status} {answer.url}"))
        self.page.on("console", lambda said: said.type == "error" and self.failed.append(said.text))
        self.page.on("pageerror", lambda error: self.failed.append(str(error)))

    def _asks(self, request):
        self.asked.append(request.url)
        self.pending.add(request)

    def open(self, search=""):
        self.page.goto(f"{self.address}/{search}")
        self.page.wait_for_function("(document.querySelector('#panel-code .number')?.innerText || '') != ''")
        self.settle()

    def settle(self):
        """Until the page has asked nothing for a while of its own time, and everything that it asked has been answered."""
        deadline, quiet = time.monotonic() + PATIENCE / 1000, 0
        while quiet < 4:
            assert time.monotonic() < deadline, "the page does not come to rest"
            self.page.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 40))")
            quiet = 0 if self.pending else quiet + 1

    def leads_to(self, **wanted):
        """Wait until the address has these settings (None: the default)."""
        deadline = time.monotonic() + PATIENCE / 1000
        while any(self.setting(name) != value for name, value in wanted.items()):
            assert time.monotonic() < deadline, f"{self.page.url} never came to {wanted}; {self.page.inner_text('#error')}"
            self.page.wait_for_timeout(50)
        self.settle()

    def setting(self, name):
        return parse_qs(urlparse(self.page.url).query).get(name, [None])[0]

    def pick(self, control, option, **wanted):
        """An option of a dropdown."""
        self.used.add(control)
        self.page.click(f"#{control}")
        self.page.locator(".dash-dropdown-content .dash-dropdown-option").filter(has_text=re.compile(f"^{option}$")).click()
        self.page.keyboard.press("Escape")
        self.leads_to(**wanted)

    def press(self, control, **wanted):
        self.used.add(control)
        self.page.click(f"#{control}")
        self.leads_to(**wanted)

    def type(self, control, text, **wanted):
        self.used.add(control)
        self.page.fill(f"#{control}", text)
        self.page.press(f"#{control}", "Enter")
        self.leads_to(**wanted)

    def at(self, name, x, y, trace=0):
        """Where a point of a figure is on the screen."""
        self.page.locator(f"#panel-{name} .js-plotly-plot").scroll_into_view_if_needed()
        find = """([name, x, y, trace]) => {
            const graph = document.querySelector(`#panel-${name} .js-plotly-plot`), drawn = graph._fullData[trace];
            const across = graph._fullLayout[drawn.xaxis.replace('x', 'xaxis')];
            const down = graph._fullLayout[drawn.yaxis.replace('y', 'yaxis')], box = graph.getBoundingClientRect();
            return [box.x + across._offset + across.l2p(x), box.y + down._offset + down.l2p(y)];
        }"""
        return self.page.evaluate(find, [name, x, y, trace])

    def click(self, name, x, y, trace=0):
        self.used.add(f"{name} Graph")
        where = self.at(name, x, y, trace)
        self.page.mouse.move(*where)
        self.page.wait_for_timeout(150)
        self.page.mouse.click(*where)

    def numbers(self):
        return {name: self.page.inner_text(f"#panel-{name} .number") for name in PANELS}

    def program(self, name):
        return self.page.locator(f"#panel-{name} pre").text_content()


@pytest.fixture(scope="module")
def address(tiny_models):
    """The page as the command serves it, in a process that tells what it connects to."""
    folders = [str(tiny_models[name]) for name in ("softmax", "hypernetwork")]
    command = [sys.executable, "-c", WATCHED, *folders, "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline()).group()
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "ended" in said  # Ctrl-C ends it
    assert set(re.findall(r"connects to (\S+)", errors)) <= {"127.0.0.1"} and "error" not in errors, errors


@pytest.fixture(scope="module")
def reader(address):
    if CHROMIUM is None:
        assert "COMPOLENS_BROWSER" not in os.environ, "a Chromium is to be on PATH here; make browser installs Debian's"
        pytest.skip("no Chromium on PATH, so the page was not tried; `make browser` installs Debian's")
    api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser; pip install playwright")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE)
        yield Reader(browser, address)
        browser.close()


@pytest.mark.timeout(900)
def test_a_reader_uses_every_control(reader, tiny_models):
    reader.open()
    _choose_models(reader)
    _choose_episodes(reader)
    _choose_what_is_shown(reader)
    _click_figures(reader)
    _move_a_part(reader)
    _save(reader)
    _freeze(reader)
    assert reader.used == controls_of(page(list(tiny_models))) | {"parts"}
    _open_again(reader)
    _run_programs(reader)
    assert not reader.failed
    hosts = {urlparse(url).netloc for url in reader.asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlparse(reader.address).netloc}


def _choose_models(reader):
    reader.pick("step", "0", step="0")
    reader.pick("model", "hypernetwork", model="hypernetwork", step=None)
    reader.pick("model", "softmax", model=None)
    reader.pick("other", "hypernetwork", other="hypernetwork")
    reader.pick("other_step", "1", other_step="1")
    reader.used.add("split")
    reader.page.click("#split >> text=trained on (test)")
    reader.leads_to(split="test")


def _choose_episodes(reader):
    reader.press("go-next", chosen="1")
    reader.press("go-previous", chosen=None)
    reader.page.keyboard.press("ArrowRight")
    reader.leads_to(chosen="1")
    for button, chosen in (("go-next", "4"), ("go-previous", "1")):  # three clicks before the address has followed the first
        reader.page.evaluate(
            "(id) => [0, 1, 2].map((i) => setTimeout(() => document.getElementById(id).click(), 40 * i))", button
        )
        reader.leads_to(chosen=chosen)
    reader.press("go-same")
    assert len(reader.setting("chosen").split(",")) > 5
    reader.press("go-worst-one")
    assert reader.setting("chosen").isdecimal()
    reader.press("go-all", chosen="0-511")
    assert "512 episodes" in reader.page.inner_text("#extent")
    reader.type("chosen", "3-1x", chosen="0-511")
    assert "ranges such as" in reader.page.inner_text("#error")
    reader.type("chosen", "0-3,7", chosen="0-3,7")
    reader.type("chosen", "", chosen="0-3,7")
    assert "no episode is chosen" in reader.page.inner_text("#error")
    reader.type("donor", "0", donor="0")
    assert "its own donor: nothing is moved" in reader.page.inner_text("#panel-sites .caption")
    reader.type("donor", "5", donor="5")
    for wrong in ("1.5", ""):  # the selection stays, and so says the page
        reader.type("donor", wrong, donor="5")
        reader.page.wait_for_function("document.querySelector('#error').innerText.includes('it stays at 5')")
    reader.type("donor", "5", donor="5")
    reader.page.wait_for_function("document.querySelector('#error').innerText === ''")


def _choose_what_is_shown(reader):
    reader.pick("colour", "readout R²", colour="readout R²")
    reader.pick("write", "donor's code", write="donor's code")
    reader.pick("site", "2: readout", at="2", role="readout")
    reader.pick("layer", "1", layer="1")
    reader.pick("head", "1", head="1")
    reader.used.add("search")
    reader.page.click("#search >> text=search the best code")
    reader.leads_to(search="True")
    for key, button, name in (
        ("Shift+ArrowDown", "go-next-layer", "layer"), ("Shift+ArrowUp", "go-previous-layer", "layer"),
        ("Shift+ArrowRight", "go-next-head", "head"), ("Shift+ArrowLeft", "go-previous-head", "head"),
    ):  # fmt: skip
        reader.page.keyboard.press(key)
        reader.leads_to(**{name: None})
        reader.press(button, **{name: "1"})


def _click_figures(reader):
    reader.click("sites", 1, 1)
    reader.leads_to(at="1", role="readout")
    reader.click("heads", 2, 2, trace=0)
    reader.leads_to(head=None)
    points = "document.querySelector('#panel-worst .js-plotly-plot')._fullData[0]"
    x, y = reader.page.evaluate(f"[{points}.x[0], {points}.y[0]]")
    reader.click("worst", x, y)
    reader.page.wait_for_function("!location.search.includes('chosen=0-3')")
    reader.settle()
    (left, top), (right, bottom) = reader.at("worst", -5, 10), reader.at("worst", 60, -0.2)
    box = reader.page.locator("#panel-worst .nsewdrag").bounding_box()
    reader.page.mouse.move(max(left, box["x"] + 2), max(top, box["y"] + 2))
    reader.page.mouse.down()
    reader.page.mouse.move(right, min(bottom, box["y"] + box["height"] - 2), steps=8)
    reader.page.mouse.up()
    reader.page.wait_for_function("(location.search.match(/chosen=[^&]*/) || [''])[0].includes(',')")
    reader.settle()
    reader.click("grid", 0, 3)  # modules 0 and 3: held out
    reader.leads_to(split=None)
    assert "composition 0+3" in reader.page.inner_text("#sheets")
    reader.used |= {
        f"{name} Graph" for name in ("code", "ladder", "attention", "parts", "diff")
    }  # looked at, with nothing to click


def _move_a_part(reader):
    reader.used.add("parts")
    graph = "document.querySelector('#panel-code .js-plotly-plot')"
    drawn = f"JSON.stringify({graph}.calcdata.map((marks) => marks.map((mark) => [mark.x, mark.y, mark.s])))"
    before, figure = reader.numbers()["code"], reader.page.evaluate(drawn)
    thumb = reader.page.locator("#parts .part [role=slider]").nth(2)
    for _ in range(5):
        thumb.press("ArrowRight")
    reader.page.wait_for_function("location.search.includes('parts=2:')")
    reader.settle()
    moved = reader.numbers()["code"]
    assert "written code" in moved and moved != before and reader.page.evaluate(drawn) != figure
    by_hand = reader.page.evaluate(drawn)
    reader.press("go-undo", parts=None)
    assert reader.numbers()["code"] == before and reader.page.evaluate(drawn) == figure
    reader.page.go_back()
    reader.page.wait_for_function("location.search.includes('parts=2:')")
    reader.settle()
    assert reader.numbers()["code"] == moved and reader.page.evaluate(drawn) == by_hand  # drawn the other way, the same
    reader.press("go-undo", parts=None)
    thumb.press("ArrowRight")
    reader.page.wait_for_function("location.search.includes('parts=2:')")
    reader.settle()


def _save(reader):
    for name in PANELS:
        for suffix, begin in (("png", b"\x89PNG"), ("csv", b"panel,series")):
            with reader.page.expect_download() as found:
                reader.page.click(f"#panel-{name} .tools button:text('{suffix.upper()}')")
            with open(found.value.path(), "rb") as file:
                assert file.read(12).startswith(begin) and found.value.suggested_filename == f"{name}.{suffix}"
            reader.used.add(f"{name}/{suffix} Button")
        reader.page.click(f"#panel-{name} summary")
        reader.page.click(f"#panel-{name} .copy")
        reader.page.wait_for_timeout(200)
        assert reader.page.evaluate("navigator.clipboard.readText()").strip() == reader.program(name).strip()
        reader.used |= {f"{name} Clipboard", "Summary"}


def _freeze(reader):
    """One file with what is shown, which opens where there is no network."""
    with reader.page.expect_download() as found:
        reader.page.click("#go-freeze")
    reader.used.add("go-freeze")
    with open(found.value.path(), encoding="utf-8") as file:
        held = file.read()
    alone = reader.context.new_page()
    asked, failed = [], []
    alone.on("request", lambda request: asked.append(request.url))
    alone.on("pageerror", lambda error: failed.append(str(error)))
    alone.set_content(held)
    alone.wait_for_selector("html[data-ready]")
    assert alone.locator(".js-plotly-plot").count() == len(PANELS) and not failed
    assert all(url.startswith(("data:", "blob:", "about:")) for url in asked)
    assert all(number in alone.inner_text("body") for number in reader.numbers().values())
    alone.close()


def _open_again(reader):
    """The address holds the state: a page opened there shows the same."""
    shown, search = reader.numbers(), urlparse(reader.page.url).query
    controls = {
        name: reader.page.inner_text(f"#{name}") for name in ("model", "step", "other", "site", "layer", "head", "write")
    }
    reader.open(f"?{search}")
    assert reader.numbers() == shown
    assert {name: reader.page.inner_text(f"#{name}") for name in controls} == controls


def _run_programs(reader):
    """What "as Python" shows prints the number above it."""
    for name, told in reader.numbers().items():
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(reader.program(name), {})
        number = re.search(r": (-?[\d.]+|nan)", told.rpartition("step 1,")[2] if name == "diff" else told).group(1)
        assert float(said.getvalue().split()[-1]) == pytest.approx(float(number), abs=6e-4, nan_ok=True), name


@pytest.mark.timeout(300)
def test_a_phone_shows_panels_below_one_another(reader):
    reader.page.set_viewport_size({"width": 390, "height": 844})
    reader.open()
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 390
    columns = "new Set(document.querySelector('#panel-code .js-plotly-plot')._fullData.map(t => t.xaxis)).size"
    domains = "Object.entries(document.querySelector('#panel-code .js-plotly-plot')._fullLayout)"
    left = f"new Set({domains}.filter(([k]) => k.startsWith('xaxis')).map(([, a]) => a.domain[0])).size"
    assert reader.page.evaluate(columns) > 1 and reader.page.evaluate(left) == 1
    reader.page.wait_for_function("document.querySelector('#panel-ladder .xtitle')")
    cut = """[...document.querySelectorAll('.js-plotly-plot')].flatMap((graph) => {
        const frame = graph.getBoundingClientRect();
        return [...graph.querySelectorAll('.xtitle')].filter((title) => {
            const box = title.getBoundingClientRect();
            return box.left < frame.left || box.right > frame.right;
        }).map((title) => title.textContent);
    })"""
    assert reader.page.evaluate(cut) == []
