"""The documentation: every code block runs as printed, generated pages leave nothing out, links lead somewhere, it builds."""

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from glob import glob
from pathlib import Path

import numpy as np
import pytest
from once import done_once

from compolens import Run, SoftmaxTransformer, citations, cli, load, recipes, tables, train
from compolens.foundation import files
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import DoesNotApply
from compolens.models import ARCHITECTURES
from compolens.tasks import FAMILIES, FixedEpisodes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(
    r"^```(\S+|\{code-block\} (?:python|bash))\n(?::caption: ([^\n]+)\n\n)?(.*?)^```$", re.MULTILINE | re.DOTALL
)
START = "quickstart"
ELSEWHERE = "{code-block} bash"
"""Commands for machines that are not here; the caption says which."""
ABSENT = re.compile(
    r"there is no sbatch on this machine|no Ray cluster answers at|device 'cuda' cannot be used"
    r"|pip install compolens\[(slurm|ray)\]"
)
OTHERS = ("nvidia-cuda-mps-control -d", "echo quit | nvidia-cuda-mps-control")
"""Commands of other programs, which the pages tell users to type."""
SAID = {
    "task_families": (
        "tensor([0.0000, 0.0000, 0.9969, 0.0000, 0.0000, 0.7167])",
        "[ 0.3552,  1.5679, -0.4675,  0.0000]",
        "[-0.5205,  1.2581,  0.0000,  1.0000]",
        "tensor([0.4624])",
    ),
    "machines": (
        f"in work on {os.uname().nodename} (process ",
        "stopped at step 20; saved in sweep/seed-1: the same command goes on from there",
        "  begun, nobody is at work\n",
        "seed-2: train ",
    ),
    "recordings": (
        "Recording('codes': train 64, test 64, ood 64 episodes; hook_code)",
        "(768, 9, 16)\n",
        "memmap (256, 9, 16)\n",
        "['untrained/blocks.0.hook_resid_pre', ",
        "4 of 4 episodes are none of those in activations",
        "activations holds no 'hook_embed'",
        "blocks.1.hook_resid_post was edited",
        "no part 'unembed' of the model",
        "compolens record … --untrained",
        "activations holds a recording already",
        "runs/softmax holds a trained model",
    ),
}
"""What a page promises to print, and what its commands say."""


def blocks(path):
    """(language, caption or "", code) of every code block of a page, in order; Python's caption is a file's name."""
    return [match.groups("") for match in BLOCK.finditer(path.read_text(encoding="utf-8"))]


def words(line):
    """A command's words as a shell has them: quotes taken off, and patterns without quotes expanded."""
    for token in shlex.split(line, posix=False):
        quoted = token[0] in "'\""
        yield from [token[1:-1]] if quoted else (sorted(glob(token)) or [token])


def compolens_command(arguments):
    """Run `compolens` here, without a new process; its exit status."""
    try:
        return cli.main(arguments)
    except SystemExit as error:
        return error.code or 0


def torchrun_command(arguments):
    """Run `torchrun` as Python's module; its exit status."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    return done.returncode


def shell(line):
    """Run one command; `> FILE` writes what it prints."""
    command, arrow, target = line.partition(" > ")
    program, *arguments = words(command.split(" #")[0])
    run = {"compolens": compolens_command, "torchrun": torchrun_command}.get(program)
    assert run is not None, f"only compolens and torchrun are run here, not {program}"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = run(arguments)
    assert status == 0, f"{line}\n{out.getvalue()}"
    if arrow:
        Path(target.strip()).write_text(out.getvalue(), encoding="utf-8")
    else:
        print(out.getvalue())


def shell_elsewhere(line):
    """See that nothing is wrong with a command but that what it needs is absent: no program is found, no address answers."""
    if line in OTHERS:
        return
    program, *arguments = words(line)
    assert program == "compolens" and {"--engine", "--device"} & {*arguments}, f"this would run here: {line}"
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setenv("PATH", "")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(socket, "create_connection", lambda *_, **__: (_ for _ in ()).throw(ConnectionRefusedError("refused")))
        status = compolens_command(arguments)
    assert status == 2 and ABSENT.search(said.getvalue()), f"{line}\n{said.getvalue()}"


def follow(path):
    """Do what a page says, in the working folder: write named files, run commands, run Python in one namespace."""
    names = {}
    for language, caption, code in blocks(path):
        lines = code.replace("\\\n", " ").strip().splitlines()
        if language == ELSEWHERE:
            assert caption, f"{path.name}: a block that is not run here says where it is"
            for line in lines:
                shell_elsewhere(line)
        elif caption:
            assert re.fullmatch(r"\w+\.py", caption), f"{path.name}: {caption!r} is no name of a file"
            Path(caption).write_text(code, encoding="utf-8")
        elif language == "bash":
            for line in lines:
                shell(line)
        elif language == "python":
            exec(compile(code, f"{path.name}", "exec"), names)
        else:
            assert language == "{toctree}", f"{path.name}: a block of {language!r} is neither run nor a file"


@contextlib.contextmanager
def inside(folder):
    """Work in a folder, and import from it, as a user who types there."""
    before, known = Path.cwd(), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = [place for place in sys.path if place not in (str(folder), str(Path(folder).resolve()))]
        for name in set(sys.modules) - known:
            if name.startswith("compolens_file_") or (getattr(sys.modules[name], "__file__", None) or "").startswith(
                str(folder)
            ):
                del sys.modules[name]


@pytest.fixture(scope="module")
def started(shared):
    """The folder of someone who followed the quick start."""
    folder = shared / "started"

    def start():
        folder.mkdir()
        with inside(folder):
            follow(DOCS / f"{START}.md")

    done_once(shared / "docs", {"started": start})
    return folder


@pytest.fixture(scope="module")
def generate():
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- what is printed runs --------------------------------------------------------------------------------------------
def test_the_quick_start_makes_what_it_promises(started):
    assert tables.find([started / "runs"]) == [started / "runs" / "hypernetwork", started / "runs" / "softmax"]
    drawn = {path.name for path in (started / "figures").iterdir()}
    assert drawn == {f"who_generalizes.{suffix}" for suffix in ("pdf", "png", "csv", "json")}


@pytest.mark.parametrize("page", [path.stem for path in PAGES if path.stem != START])
def test_every_block_of_a_page_runs_and_says_what_it_promises(page, started, tmp_path, capfd):
    shutil.copytree(started, tmp_path / "work")
    with inside(tmp_path / "work"):
        follow(DOCS / f"{page}.md")
    said = capfd.readouterr().out
    assert not [text for text in SAID.get(page, ()) if text not in said]


def test_what_a_family_leaves_out_is_what_its_table_says(started, tmp_path):
    """Rows of the page's table: without a method the probes of its row say that they do not apply, before they measure."""
    page = (DOCS / "extending.md").read_text()
    listed = {
        line.split("`")[1]: re.findall(r"`(\w+)`", line.split("|")[2]) for line in page.splitlines() if line.startswith("| `")
    }
    source = next(code for _, caption, code in blocks(DOCS / "extending.md") if caption == "my_task.py")
    size = {"n_layers": 1, "d_model": 16, "n_heads": 2}
    without = {
        "code_kinds": source.replace('{"weights": "continuous"}', "{}"),
        "render": source.replace("def compositions", 'missing = {"render": "left out"}\n\n    def compositions'),
        "candidates": source.replace("def candidates", "def other_candidates"),
    }
    for method, text in without.items():
        assert text != source
        (tmp_path / f"without_{method}.py").write_text(text)
        with inside(tmp_path):
            family = importlib.import_module(f"without_{method}").PairSums
            train(Run(SoftmaxTransformer(**size), family(), steps=0), tmp_path / method)
        trained = load(tmp_path / method, classes=[family])
        row = [name for name in listed[method] if name in built_in("probes")]
        assert row
        for name in row:
            with pytest.raises(DoesNotApply):
                recipes.load_recipe("probes", name)(trained)


def test_what_episodes_leave_out_is_what_their_table_says(tmp_path):
    """Rows of the page's table: without codes, or without counterfactuals, the probes of the row do not apply, and say what to
    write; all that a row does not name measures them."""
    page = (DOCS / "bring_your_own.md").read_text()
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")]
    coded, rendered = ([n for n in re.findall(r"`(\w+)`", row) if n in built_in("probes")] for row in rows[2:4])
    assert {"latent_code", "predictors"} <= set(coded) and {"patching", "edges", "which_prior"} <= set(rendered)
    rng = np.random.default_rng(0)
    first, second = np.divmod(np.repeat(np.arange(9), 24), 3)
    tokens = np.stack([first, second, *rng.integers(0, 5, (2, 216)), np.tile(np.arange(24), 9)], 1)
    split = np.where(first + second == 3, "ood", np.where(np.arange(216) % 3 == 0, "test", "train"))
    arrays = {"tokens": tokens, "targets": (first + second) % 3, "composition": 3 * first + second, "split": split}
    for name, codes, lacking in (("bare", {}, coded + rendered), ("coded", {"first": first, "second": second}, rendered)):
        task = FixedEpisodes.write(tmp_path / name, **arrays, codes=codes)
        run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), task, steps=0, evaluation_episodes=8)
        train(run, tmp_path / "runs" / name)
        trained = load(tmp_path / "runs" / name)
        for probe in lacking:
            with pytest.raises(DoesNotApply, match=r"write|store|code_kinds"):
                recipes.load_recipe("probes", probe)(trained)
    for probe in ("code_structure", "latent_code", "attention_code"):
        table, _ = recipes.load_recipe("probes", probe)(trained, episodes=24)
        assert table["value"].notna().any(), probe


@pytest.mark.parametrize(
    ("begins", "ends", "most"),
    [
        ("## From nothing to a diagnosis", "## A language model", 45),
        ("## A language model", "## Sequences of different lengths", 30),
        ("## Sequences of different lengths", "## Sites", 45),
        ("## A TransformerBridge", "## Sites", 30),
    ],
)
def test_an_example_that_ends_in_a_diagnosis_is_short(begins, ends, most, tmp_path):
    text = (DOCS / "bring_your_own.md").read_text(encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(text[text.index(begins) : text.index(ends)])
    lines = [line for _, _, code in blocks(page) for line in code.splitlines() if line.strip()]
    assert any(line.startswith("compolens explain") for line in lines) and len(lines) <= most


def test_no_block_escapes_being_run():
    fences = {page.stem: len(re.findall(r"^```\S", page.read_text(), re.MULTILINE)) for page in PAGES}
    assert fences == {page.stem: len(blocks(page)) for page in PAGES}
    assert sum(caption.endswith(".py") for page in PAGES for _, caption, _ in blocks(page)) >= 5


def test_a_block_that_is_wrong_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    for wrong in (
        "```python\nassert 1 == 2\n```\n",
        "```bash\ncompolens modles\n```\n",
        "```bash\nls\n```\n",
        "```sh\nls\n```\n",
        "```{code-block} python\nassert 1 == 2\n```\n",
        "```bash\ntorchrun --nproc-per-nod 2 -m compolens.cli train\n```\n",
    ):
        page.write_text(wrong)
        with inside(tmp_path), pytest.raises(AssertionError):
            follow(page)


def test_a_command_for_another_machine_is_checked_as_far_as_it_can_be(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "one.py").write_text(blocks(DOCS / "machines.md")[0][2])
    train = "compolens train one.py --engine "
    with inside(tmp_path):
        for right in ("slurm --slurm partition=gpu --device cuda", "ray --address 10.0.0.1:6379"):
            page.write_text(f"```{{code-block}} bash\n:caption: on a cluster\n\n{train}{right}\n```\n")
            follow(page)
        for wrong in ("slurm --slurm partitoin=gpu", "ray --adress 10.0.0.1:6379", "slrum", "local"):
            page.write_text(f"```{{code-block}} bash\n:caption: on a cluster\n\n{train}{wrong}\n```\n")
            with pytest.raises(AssertionError):
                follow(page)
        page.write_text(f"```{{code-block}} bash\n{train}slurm\n```\n")
        with pytest.raises(AssertionError, match="says where it is"):
            follow(page)


# ---- what is generated is complete -----------------------------------------------------------------------------------
def test_the_cheat_sheet_has_every_architecture_and_true_shapes(generate):
    text = generate.hooks_page()
    assert all(text.count(f"\n- `{name}`: ") == 1 for name in ARCHITECTURES)
    sections = {name: part for part in text.split("\n## ")[1:] for name in re.findall(r"^- `(\w+)`: ", part, re.MULTILINE)}
    assert "| `blocks.{l}.attn.hook_pattern` | batch, n_heads, seq, seq |" in sections["SoftmaxTransformer"]
    assert "| `blocks.{l}.attn.hook_code` | batch, seq, seq, n_heads |" in sections["HYLA"]
    assert "| `hook_code` | batch, 1, d_code |" in sections["HypernetworkTransformer"]
    assert "hook_code` | batch, 1" not in sections["SoftmaxTransformer"]
    shapes = re.findall(r"^\| `\S+` \| (.*) \|$", text, re.MULTILINE)
    sizes = {size for shape in shapes for size in shape.split(", ") if size.isdigit()}
    assert len(shapes) > 50 and sizes == {"1"}, "every size has a name"


def test_the_cheat_sheet_names_what_fires_and_nothing_else(generate):
    model, task, _ = generate.small_model(ARCHITECTURES["HYLA"])
    _, cache = model.run_with_cache(task.sample(2, "test", task.rng(0, "test")).tokens)
    shapes = generate.shapes(ARCHITECTURES["HYLA"])
    assert {re.sub(r"\.\d+\.", ".{l}.", name) for name in cache.keys()} == set(shapes)  # noqa: SIM118
    assert shapes["blocks.{l}.attn.hook_pre"] == "batch, seq, seq, d_value"


def test_the_zoo_has_every_folder_and_its_scores(generate, tiny_models, tmp_path):
    text = generate.zoo_page(ROOT / "trained_models")
    folders = tables.find([ROOT / "trained_models"])
    assert sum(line.startswith("| `") for line in text.splitlines()) == len(folders)
    assert all(f"| `{folder.name}` | " in text for folder in folders)
    copy = shutil.copytree(tiny_models["softmax"], tmp_path / "zoo" / "mine")
    scores = files.read_json(copy / "scores.json")
    shown = " | ".join(f"{scores[split]['score']:.3f}" for split in ("train", "test", "ood"))
    assert f"| `mine` | SoftmaxTransformer | Hyperteacher | 2 | {shown} |" in generate.zoo_page(tmp_path / "zoo")
    (copy / "scores.json").unlink()
    assert "in training" in generate.zoo_page(tmp_path / "zoo")


def test_every_recipe_is_listed_with_its_question_or_claim(written):
    for kind in ("probes", "analyses"):
        text = (written / "reference" / f"{kind}.md").read_text(encoding="utf-8")
        for name, path in built_in(kind).items():
            assert f"| [`{name}`](#{name}) | {recipes.docstring(path)} |" in text and f"\n## {name}\n" in text
            row = next(line for line in text.splitlines() if line.startswith(f"| [`{name}`]"))
            tree = ast.parse(path.read_text(encoding="utf-8"))
            described = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef)]
            numbers = citations.ARXIV.findall(" ".join(ast.get_docstring(node) or "" for node in described))
            assert all(f"https://arxiv.org/abs/{number}" in row for number in numbers)


def test_a_probes_controls_are_those_of_its_shipped_tables(written):
    text = (written / "reference" / "probes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| [^|]* \| ([^|]*) \|", text, re.MULTILINE))
    measured = {path.name.split(".")[0] for path in (ROOT / "trained_models").rglob("tables/*.csv*")}
    assert all("untrained" in said for name, said in rows.items() if name in measured) and len(rows) > 15


def test_every_architecture_and_family_is_listed_with_its_paper(generate):
    for classes, text in ((ARCHITECTURES, generate.architectures_page()), (FAMILIES, generate.families_page())):
        assert all(f"\n| [`{name}`](#{name.lower()}) | " in text and f"\n## {name}\n" in text for name in classes)
    row = next(line for line in generate.architectures_page().splitlines() if line.startswith("| [`HYLA`]"))
    assert "https://arxiv.org/abs/2406.05816" in row


def test_settings_of_families_and_architectures_are_listed_one_by_one(generate):
    for classes, text in ((ARCHITECTURES, generate.architectures_page()), (FAMILIES, generate.families_page())):
        assert not re.search(r"^(Args|Returns|Raises):$", text, re.MULTILINE)
        parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
        for name, value in classes.items():
            own = re.findall(r"^    (\w+): ", inspect.getdoc(value).partition("Args:\n")[2], re.MULTILINE)
            assert all(f"\n- `{field}`: " in parts[name] for field in own), name
    families = dict(part.split("\n", 1) for part in generate.families_page().split("\n## ")[1:])
    told = re.findall(r"^- `(\w+)`: \S", families["UnstructuredTeacher"], re.MULTILINE)
    assert told == [field.name for field in dataclasses.fields(FAMILIES["UnstructuredTeacher"])], "its base's, in its order"


def test_every_benchmark_is_listed_with_its_bar(generate):
    text = generate.bench_page()
    assert "| training step, {…} unused hook points / none | <= 1.03 |" in text and text.count("\n| ") > 20


def test_every_notebook_is_a_page_with_what_it_printed_and_drew(generate, tmp_path):
    pages = generate.notebook_pages(tmp_path)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        page = pages[f"notebooks/{path.stem}.md"]
        cells = files.read_json(path)["cells"]
        drawn = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
        assert drawn and page.count("![](") == drawn == len(list((tmp_path / "notebooks").glob(f"{path.stem}-*.png")))
        assert f"\n{path.stem}\n" in pages["notebooks/index.md"]


def test_a_slider_of_a_notebook_is_a_note_on_the_site_and_formulas_need_no_script(generate, tmp_path):
    pages = "".join(generate.notebook_pages(tmp_path).values())
    assert "interactive(children" not in pages and pages.count("*In the notebook a slider stands here.") == 1
    assert not re.search(r"\$[^$\n]*\\[a-z]", pages)


def test_the_picture_of_the_parts_is_what_its_script_draws():
    spec = importlib.util.spec_from_file_location("draw_architecture", DOCS / "draw_architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text(encoding="utf-8") == module.picture(), "type: python docs/draw_architecture.py"


def test_the_api_reference_has_every_module_of_its_rooms(generate):
    rooms = [room for rooms in generate.GROUPS.values() for room in rooms]
    listed = {name for room in rooms for name in re.findall(r"automodule:: (\S+)", generate.api_page(room))}
    package = ROOT / "src" / "compolens"
    there = {path for room in rooms for path in ([package / f"{room}.py"] if (package / f"{room}.py").exists() else
             (p for p in (package / room).rglob("*.py") if p.name != "__init__.py"))}  # fmt: skip
    assert listed == {".".join(["compolens", *path.relative_to(package).with_suffix("").parts]) for path in there}
    assert all(f"\n{room}\n" in generate.api_index() for room in rooms)


# ---- links, and the site ---------------------------------------------------------------------------------------------
def checkout_of_docs(folder):
    """A copy of docs/ without what is generated, in a checkout whose other folders and files are those of this one."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name != "docs" and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    litter = shutil.ignore_patterns("reference", "_build", "__pycache__")
    return Path(shutil.copytree(DOCS, folder / "docs", ignore=litter))


@pytest.fixture(scope="module")
def site(shared):
    """A folder with `checkout/docs`, whose pages are generated, the site made of it in `html`, and what that `said`."""
    for module in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(module)
    folder = shared / "site"

    def build():
        folder.mkdir()
        copy = checkout_of_docs(folder / "checkout")
        quick = ["-D", "toc_object_entries=0"]  # or every page's navigation is laid out with thousands of entries
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", *quick, "-b", "html"]
        command += [str(copy), str(folder / "html")]
        done = subprocess.run(command, capture_output=True, text=True)
        (folder / "said").write_text(f"{done.returncode}\n{done.stderr}", encoding="utf-8")

    done_once(shared / "docs", {"site": build})
    return folder


@pytest.fixture(scope="module")
def written(site):
    """A copy of docs/ with its generated pages."""
    return site / "checkout" / "docs"


def anchors(text):
    """The anchors of a page's headings."""
    prose = re.sub(r"^(`{3,})[^`\n]*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere(written):
    dead, pages = [], [written.parent / "README.md", *written.rglob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")]
        for toctree in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            links += [f"{line}.md" for line in toctree.splitlines() if line and not line.startswith(":")]
        for link in links:
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            if not target.is_file() or (heading and heading not in anchors(target.read_text(encoding="utf-8"))):
                dead.append(f"{page.name}: {link}")
    assert not dead and len(pages) > 50


def test_the_readme_links_to_nothing_that_only_the_site_has():
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links and not [link for link in links if "docs/reference" in link]


def test_every_page_is_reached_from_the_entrance(written):
    entrance = (written / "index.md").read_text(encoding="utf-8")
    own = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md") if "reference" not in page.parts}
    listed = [line for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", entrance, re.MULTILINE | re.DOTALL)
              for line in tree.splitlines()]  # fmt: skip
    assert own - {"index"} <= set(listed)


def test_the_site_builds_without_a_warning(site):
    (status, said), html = (site / "said").read_text(encoding="utf-8").split("\n", 1), site / "html"
    assert status == "0", said
    assert {"index.html", "quickstart.html", "extending.html"} <= {path.name for path in html.glob("*.html")}
    failing = (html / "findings" / "why_it_fails.html").read_text(encoding="utf-8")
    assert "../_images/failure_has_a_place.png" in failing and "../reference/notebooks/05_change_its_mind.html" in failing
