"""The command line: train · probe · analyze · explain · report · record · models. Finds recipes by path; imports none."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compolens import __version__
from compolens.configs import ConfigError, nearest

DESCRIPTION = """Why does compositional generalization succeed or fail?

train writes a folder per run, probe adds tables to it, analyze and report draw from the tables. explain does all but the
first, and says what is wrong.
"""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest the nearest flag."""

    def error(self, message: str) -> typing.NoReturn:
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def unknown(self, arguments: list[str]) -> typing.NoReturn:
        first = arguments[0]
        hint = (
            nearest(first.split("=")[0], self._option_string_actions) if first.startswith("-") else f"try {self.prog} --help"
        )
        self.error(f"unknown argument {first}; {hint}")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 1 some jobs failed, 2 bad input, 128+signal interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(arguments)
    except ConfigError as error:
        print(f"compolens: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"compolens: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"compolens: {error or 'interrupted'}", file=sys.stderr)
        return 128 + getattr(error, "signum", 2)
    except Exception as error:
        if os.environ.get("COMPOLENS_DEBUG"):
            raise
        from compolens.jobs import explain

        print(f"compolens: error: {explain(error)}", file=sys.stderr)
        return 2


def _dispatch(arguments: list[str]) -> int:
    parser = Parser(
        prog="compolens", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"compolens {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    made = {name: make(commands) for name, make in COMMANDS.items()}
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        parser.error(f"no command {arguments[0]!r}; {nearest(arguments[0], COMMANDS)}")
    if arguments and arguments[0] in ("probe", "analyze"):
        _add_recipe_flags(made[arguments[0]], "probes" if arguments[0] == "probe" else "analyses", arguments[1:])
    if not arguments or arguments[0] not in COMMANDS:
        _, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.unknown(unknown)
        parser.print_help()
        return 0
    command = made[arguments[0]]
    options, unknown = command.parse_known_intermixed_args(arguments[1:])  # flags may stand before, between or after names
    if unknown:
        command.unknown(unknown)
    return options.run(options)


def _command(commands: Any, name: str, run: Callable, text: str, example: str) -> Parser:
    parser = commands.add_parser(
        name, help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def _common(parser: Parser, *names: str) -> None:
    if "jobs" in names:
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time, one thread each (default 1)")
    if "device" in names:
        parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default cpu)")
    if "with" in names:
        parser.add_argument(
            "--with", dest="classes", action="append", default=[], metavar="PLACE:CLASS",
            help="a class of your own that a folder may name: package.module:Class or file.py:Class",
        )  # fmt: skip
    if "data" in names:
        parser.add_argument("--data", metavar="DIR", help="the folder of data, for tasks that read some (their setting data)")


# ---- train -----------------------------------------------------------------------------------------------------------
def _make_train(commands: Any) -> Parser:
    parser = _command(
        commands, "train", _train, "train the runs of a file, each into a folder; an interrupted run goes on where it was",
        "compolens train trained_models/runs.py 'F-*' --out runs --jobs 2",
    )  # fmt: skip
    parser.add_argument("file", help="a Python file that defines `runs`, a dict name -> Run")
    parser.add_argument("names", nargs="*", default=[], help="which runs (names or patterns; default: all)")
    parser.add_argument("--list", action="store_true", help="show the runs and train none")
    parser.add_argument("--out", default="runs", help="where the folders go (default runs)")
    _common(parser, "data", "jobs", "device")
    return parser


def read_runs(file: str) -> dict[str, Any]:
    """The `runs` of a file, checked."""
    from compolens.recipes import load_file
    from compolens.training import Run

    path = Path(file)
    if not path.is_file():
        raise ConfigError(f'there is no file {path}; it should define runs = {{"name": Run(...)}}')
    runs = getattr(load_file(path), "runs", None)
    if not isinstance(runs, dict) or not runs or not all(isinstance(run, Run) for run in runs.values()):
        raise ConfigError(f'{path} defines no runs: it needs a dict  runs = {{"name": Run(...)}}')
    return runs


def with_data(run: Any, data: str | None) -> Any:
    """The run with its task reading another folder, by its absolute path; None leaves it as it is."""
    if data is None:
        return run
    if "data" not in {field.name for field in dataclasses.fields(run.task)}:
        raise ConfigError(
            f"--data {data}: {type(run.task).__name__} reads no data; leave --data out, or name only runs that do"
        )
    return dataclasses.replace(run, task=dataclasses.replace(run.task, data=os.path.abspath(Path(data).expanduser())))


def _train(options: argparse.Namespace) -> int:
    from compolens import jobs

    runs, out = read_runs(options.file), Path(options.out)
    chosen: list[str] = []
    for pattern in options.names or ["*"]:
        matched = [name for name in runs if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(f"{options.file} has no run {pattern!r}; {nearest(pattern, runs)}")
        chosen += [name for name in matched if name not in chosen]
    if options.list:
        _print_runs({name: runs[name] for name in chosen}, out)
        return 0
    _check_device(options.device)
    for name in chosen:
        with_data(runs[name], options.data)  # a mistake is one line now, not one per job
    arguments = (options.data, options.device)
    work = [jobs.Job(name, train_one, (options.file, name, str(out / name), *arguments)) for name in chosen]
    return _conclude(jobs.run(work, options.jobs))


def train_one(file: str, name: str, folder: str, data: str | None, device: str, *, report: Callable) -> str:
    """One run of a file, in whatever process this is."""
    from compolens.training import train

    def progress(state: Any) -> None:
        scores = "  ".join(f"{split} {value:.3f}" for split, value in state.scores.items())
        report(state.step, state.steps, state.note or f"loss {state.loss:.4f}  {scores}")

    run = with_data(read_runs(file)[name], data)
    scores = train(run, folder, device=device, progress=progress)
    texts = [f"{split} {scores[split]['score']:.4f} ± {scores[split]['se']:.4f}" for split in ("train", "test", "ood")]
    if len(scores["environments"]) > 1:
        texts.append("(resumed in another environment: not an uninterrupted run's weights bit for bit)")
    return "  ".join(texts)


def _print_runs(runs: dict[str, Any], out: Path) -> None:
    rows = []
    for name, run in runs.items():
        folder = out / name
        done, begun = (folder / "scores.json").exists(), (folder / "config.json").exists()
        state = "finished" if done else "begun" if begun else ""
        rows.append([name, type(run.architecture).__name__, type(run.task).__name__, f"{run.steps:,}", state])
    _print_table(["run", "architecture", "task", "steps", f"in {out}"], rows)


# ---- probe and analyze -----------------------------------------------------------------------------------------------
def _make_probe(commands: Any) -> Parser:
    parser = _command(
        commands, "probe", _probe, "measure trained models: each recipe adds a table to each folder",
        "compolens probe generalization latent_code runs/* --jobs 2",
    )  # fmt: skip
    parser.add_argument("items", nargs="*", metavar="RECIPE… FOLDER…", help="probes by name or path, then model folders")
    parser.add_argument("--list", action="store_true", help="show each probe's question")
    parser.add_argument(
        "--steps",
        default="final",
        help="final, all (every kept step), or a kept step's number (measured beside the final one)",
    )
    parser.add_argument("--again", action="store_true", help="measure even where an up-to-date table lies")
    _common(parser, "jobs", "device", "with")
    return parser


def _make_analyze(commands: Any) -> Parser:
    parser = _command(
        commands, "analyze", _analyze, "draw figures from the tables of many models: PDF, PNG, the numbers, and what was used",
        "compolens analyze who_generalizes runs/* --out figures --width column",
    )  # fmt: skip
    parser.add_argument("items", nargs="*", metavar="RECIPE… FOLDER…", help="analyses by name or path, then model folders")
    parser.add_argument("--list", action="store_true", help="show each analysis' claim")
    parser.add_argument("--out", default="figures", help="where the figures go (default figures)")
    parser.add_argument(
        "--width",
        default="page",
        choices=["column", "page"],
        help="column or page: a one-column or a full-width figure (default page)",
    )
    return parser


def split_items(kind: str, items: list[str]) -> tuple[list[Path], list[Path]]:
    """(recipe files, model folders) from a mixed list of arguments."""
    from compolens import recipes

    files, folders = [], []
    for item in items:
        is_recipe = item.endswith(".py") or (item in recipes.built_in(kind) and not (Path(item) / "config.json").exists())
        if is_recipe:
            files.append(recipes.locate(kind, item))
        elif Path(item).exists():
            folders.append(Path(item))
        elif os.sep not in item and not files:
            raise ConfigError(f"no recipe {item!r} in {kind}; {nearest(item, recipes.built_in(kind))}")
        else:
            raise ConfigError(
                f"there is no folder {item!r}, nor a recipe of that name ({nearest(item, recipes.built_in(kind))})"
            )
    return files, folders


def _add_recipe_flags(parser: Parser, kind: str, arguments: list[str]) -> None:
    """The keyword arguments of the recipes named become flags of this call."""
    from compolens import recipes

    named = [a for a in arguments if a.endswith(".py") or a in recipes.built_in(kind)]
    for name in named:
        function = recipes.load_recipe(kind, name)
        for option, parameter in recipes.options(function).items():
            flag = f"--{option.replace('_', '-')}"
            taken = parser._option_string_actions.get(flag)
            if taken is None:
                _add_flag(parser, name, option, parameter)
            elif taken.dest != f"recipe_{option}":
                raise ConfigError(f"{name}: its argument {option!r} would hide the flag {flag} of {parser.prog}; rename it")
    if named and any(a in ("-h", "--help") for a in arguments):
        texts = [inspect.getdoc(recipes.load_recipe(kind, name)) or "" for name in named]
        parser.description = "\n\n".join(f"{Path(n).stem}: {t}" for n, t in zip(named, texts, strict=True))


def _add_flag(parser: Parser, recipe: str, name: str, parameter: inspect.Parameter) -> None:
    kind = parameter.annotation
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    flag, text = f"--{name.replace('_', '-')}", f"{Path(recipe).stem} (default {parameter.default})"
    if kind is bool:
        parser.add_argument(flag, dest=f"recipe_{name}", action=argparse.BooleanOptionalAction, default=None, help=text)
    elif kind in (int, float, str):
        parser.add_argument(flag, dest=f"recipe_{name}", type=kind, default=None, metavar=kind.__name__, help=text)
    else:
        raise ConfigError(f"{recipe}: {name} must be annotated int, float, str or bool (or that | None) to become a flag")


def _recipe_arguments(kind: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What this recipe is called with: its defaults, overridden by the flags given."""
    from compolens import recipes

    known = recipes.options(recipes.load_recipe(kind, file))
    given = {n: getattr(options, f"recipe_{n}", None) for n in known}
    return {n: parameter.default if given[n] is None else given[n] for n, parameter in known.items()}


def _list_recipes(kind: str) -> int:
    from compolens import recipes

    _print_table(
        ["recipe", "question" if kind == "probes" else "claim"],
        [[n, recipes.docstring(p)] for n, p in recipes.built_in(kind).items()],
    )
    return 0


def _finished(models: list[Path], named: list[Path]) -> list[Path]:
    """The models without those still in training, unless the caller named them (which is then an error where it matters)."""
    from compolens import tables

    kept = [m for m in models if tables.finished(m) or m in named]
    for model in models:
        if model not in kept:
            print(f"{model.name}: not finished, left out", file=sys.stderr)
    if not kept:
        raise ConfigError(f"none of the {len(models)} trainings found has ended; the same `compolens train` command goes on")
    return kept


def _need(kind: str, command: str, files: list[Path], folders: list[Path]) -> None:
    if not files:
        raise ConfigError(f"name a recipe: compolens {command} RECIPE FOLDER…; compolens {command} --list shows them")
    if not folders:
        raise ConfigError(f"name a model folder: compolens {command} {files[0].stem} FOLDER…")


def _probe(options: argparse.Namespace) -> int:
    if options.list:
        return _list_recipes("probes")
    from compolens import jobs, recipes, tables

    files, folders = split_items("probes", options.items)
    _need("probes", "probe", files, folders)
    _check_device(options.device)
    recipes.check_steps(options.steps)
    models = _finished(tables.find(folders), folders)
    arguments = {file: _recipe_arguments("probes", file, options) for file in files}
    return _conclude(jobs.run(_to_measure(models, arguments, options, options.steps), options.jobs))


def _to_measure(models: list[Path], wanted: dict[Path, dict[str, Any]], options: argparse.Namespace, steps: str) -> list[Any]:
    """A job per model and probe (file -> arguments) whose table is missing, stale, or was measured with other arguments."""
    from compolens import jobs

    names, work = [folder.name for folder in models], []
    for folder in models:
        label = folder.name if names.count(folder.name) == 1 else str(folder)
        for file, arguments in wanted.items():
            if not options.again and _up_to_date(folder, file, arguments, steps):
                print(f"{label} · {file.stem}: up to date", file=sys.stderr)
                continue
            job = (str(file), str(folder), arguments, steps, options.device, tuple(options.classes))
            work.append(jobs.Job(f"{label} · {file.stem}", probe_one, job))
    return work


def _up_to_date(folder: Path, file: Path, arguments: dict[str, Any], steps: str) -> bool:
    from compolens import checkpoints, recipes, tables

    path = tables.path_of(folder, file.stem)
    if not path.exists() or not path.with_suffix(".json").exists() or tables.why_stale(folder, file.stem, file):
        return False
    provenance = checkpoints.read_json(path.with_suffix(".json"))
    same = {k: v for k, v in arguments.items() if v is not None} == provenance["arguments"]
    return same and set(recipes.wanted_steps(folder, steps)) <= set(provenance["steps"])


def probe_one(
    file: str, folder: str, arguments: dict[str, Any], steps: str, device: str, classes: tuple[str, ...], *, report: Callable
) -> str:
    """One probe on one model, in whatever process this is."""
    import torch

    from compolens import recipes

    torch.set_num_threads(
        1
    )  # side by side, more threads than cores slow each other down; and one gives the same digits anywhere
    report(0, 1, "measuring")
    path = recipes.run_probe(
        Path(file), Path(folder), arguments, steps=steps, device=device, classes=_outside(classes),
        note=lambda text: report(0, 1, text),
    )  # fmt: skip
    return os.path.relpath(path)


def _analyze(options: argparse.Namespace) -> int:
    if options.list:
        return _list_recipes("analyses")
    from compolens import recipes, tables

    files, folders = split_items("analyses", options.items)
    _need("analyses", "analyze", files, folders)
    models = _finished(tables.find(folders), folders)
    for file in files:
        arguments = _recipe_arguments("analyses", file, options)
        for path in recipes.run_analysis(file, models, arguments, Path(options.out), options.width):
            print(path)
    return 0


# ---- report, record, models ------------------------------------------------------------------------------------------
def _make_report(commands: Any) -> Parser:
    parser = _command(
        commands, "report", _report, "one self-contained HTML page about a set of model folders",
        "compolens report runs/demo/* -o runs/demo/report.html",
    )  # fmt: skip
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="model folders, or folders of model folders")
    parser.add_argument("-o", "--output", default="report.html", help="the page (default report.html)")
    _common(parser, "with")
    return parser


def _report(options: argparse.Namespace) -> int:
    from compolens import report, tables

    command = " ".join(["compolens", "report", *options.folders, "-o", options.output])
    models = tables.find([Path(f) for f in options.folders])
    path, lines = report.write(models, Path(options.output), _outside(options.classes), command)
    print("\n".join(lines))
    print(f"\nreport: {path}")
    return 0


EXPLAINS = ("generalization", "inference_or_execution", "which_prior", "swap_code", "swap_factor", "latent_code", "erase_code")
"""The probes that `explain` reads, in the order in which it measures what is missing."""


def _make_explain(commands: Any) -> Parser:
    parser = _command(
        commands, "explain", _explain,
        "say what is wrong with models, and where: measures what is missing, then the verdict and a page with the evidence",
        "compolens explain runs/F-softmax-0 -o report.html",
    )  # fmt: skip
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="model folders, or folders of model folders")
    parser.add_argument("-o", "--output", default="report.html", help="the page (default report.html)")
    parser.add_argument("--again", action="store_true", help="measure even where an up-to-date table lies")
    parser.add_argument("--confirm", action="store_true", help="also mend what is blamed, and placebos (probe repair; slower)")
    parser.add_argument("--episodes", type=int, default=None, metavar="N", help="for every probe (default: each its own)")
    _common(parser, "jobs", "device", "with")
    return parser


def _explain(options: argparse.Namespace) -> int:
    from compolens import jobs, recipes, report, tables

    folders = [Path(f) for f in options.folders]
    _check_device(options.device)
    models = _finished(tables.find(folders), folders)
    files = [recipes.locate("probes", name) for name in (*EXPLAINS, *(["repair"] if options.confirm else []))]
    given = {} if options.episodes is None else {"episodes": options.episodes}
    work = _to_measure(models, {file: _defaults(file) | given for file in files}, options, "final")
    outcome = jobs.run(work, options.jobs)
    for name, reason in outcome.inapplicable.items():
        print(f"{name}: does not apply: {reason}", file=sys.stderr)
    if outcome.signum or outcome.failures:
        return _conclude(outcome)
    command = " ".join(["compolens", "explain", *options.folders, "-o", options.output])
    path, lines = report.write(models, Path(options.output), _outside(options.classes), command)
    print("\n".join(lines))
    print(f"\nreport: {path}")
    return 0


def _defaults(file: Path) -> dict[str, Any]:
    """What a probe is called with when no flag is given."""
    from compolens import recipes

    return {n: parameter.default for n, parameter in recipes.options(recipes.load_recipe("probes", file)).items()}


def _make_challenge(commands: Any) -> Parser:
    parser = _command(
        commands, "challenge", _challenge, "measure a claim again under every defensible choice of how to measure it",
        "compolens challenge runs/F-softmax-0 --claim latent_code --out figures",
    )  # fmt: skip
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("--claim", default="latent_code", help="which claim (default latent_code)")
    parser.add_argument("--episodes", type=int, default=2048, metavar="N", help="per split (default 2048)")
    parser.add_argument("--permutations", type=int, default=20, metavar="N", help="of the labels, for the null (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="which episodes (default 0)")
    parser.add_argument("--out", default="figures", help="where the curve goes (default figures)")
    _common(parser, "with")
    return parser


def _challenge(options: argparse.Namespace) -> int:
    from compolens import challenge, figures, tables

    folder = Path(options.folder)
    arguments = {"episodes": options.episodes, "permutations": options.permutations, "seed": options.seed}
    found = challenge.run(folder, options.claim, classes=_outside(options.classes), **arguments)
    name = f"challenge-{options.claim}-{folder.name}"
    sidecar = {"runs": [str(folder)], "arguments": arguments, "weights": tables.file_digest(folder / "weights.safetensors")}
    sidecar |= {"command": f"compolens challenge {folder} --claim {options.claim}", "version": __version__}
    paths = figures.save(found.drawing, Path(options.out), name, "page", sidecar)
    table = Path(options.out) / f"{name}.specifications.csv"
    found.table.to_csv(table, index=False, float_format="%.6g")
    print(found.drawing.caption, *paths, table, sep="\n")
    return 0


def _make_record(commands: Any) -> Parser:
    parser = _command(
        commands, "record", _record, "export activations: one .npy per hook point beside codes, compositions and tokens",
        "compolens record runs/F-softmax-0 --sites blocks.1.hook_resid_post -o activations",
    )  # fmt: skip
    parser.add_argument("folder", help="a model folder")
    parser.add_argument(
        "--sites", nargs="+", required=True, metavar="SITE", help="hook points, or patterns such as 'blocks.*.hook_resid_post'"
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where the arrays go")
    parser.add_argument("--split", default="ood", help="train, test or ood (default ood)")
    parser.add_argument("--episodes", type=int, default=1024, metavar="N", help="how many episodes (default 1024)")
    parser.add_argument("--seed", type=int, default=0, help="which episodes (default 0)")
    parser.add_argument("--step", type=int, default=None, help="weights of a kept step (default: final)")
    _common(parser, "data", "device", "with")
    return parser


def _record(options: argparse.Namespace) -> int:
    from compolens import activations, zoo

    _check_device(options.device)
    trained = zoo.load(options.folder, options.step, _outside(options.classes), options.device)
    sites: list[str] = []
    for pattern in options.sites:
        sites += [name for name in _matching_sites(trained.model, pattern) if name not in sites]
    task = with_data(trained.run, options.data).task
    episodes = activations.draw(task, options.split, options.episodes, options.seed, options.device)
    folder = activations.export(trained.model, episodes, sites, options.output, options.episodes)
    for path in sorted(folder.glob("*.npy")):
        print(path)
    return 0


def _matching_sites(model: Any, pattern: str) -> list[str]:
    """The hook points that fire and match; none, or a name that does not fire, is an error."""
    matched = []
    for name in fnmatch.filter(model.hook_dict, pattern):
        with contextlib.suppress(ConfigError):
            model.check_site(name)
            matched.append(name)
    if not matched:
        model.check_site(pattern)
    return matched


def _make_models(commands: Any) -> Parser:
    parser = _command(commands, "models", _models, "list trained models with their scores", "compolens models trained_models")
    parser.add_argument(
        "folders", nargs="*", default=None, metavar="DIR", help="where to look (default: trained_models, runs)"
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="a Markdown table: means over seeds with 95 %% intervals (needs the table generalization)",
    )
    parser.add_argument("--diagnosis", action="store_true", help="a Markdown table: label and loss in parts (see explain)")
    _common(parser, "with")
    return parser


def _summarise(folders: list[Path]) -> int:
    """Groups of models that differ in seeds alone: parameters, seeds, test and ood score with two-level intervals, the ceiling
    of the latter, and what the paper reports where the setting is its own. Then the trainings that have not ended."""
    from compolens import checkpoints, tables, verdict, zoo

    print("| setting | architecture | parameters | seeds | test | ood | ceiling | the paper's measure: ours / the paper |")
    print("|---|---|---|---|---|---|---|---|")
    for group in verdict.group([f for f in folders if tables.finished(f)]):
        parameters = checkpoints.read_json(group.folders[0] / "scores.json")["parameters"]
        cells = []
        for split in ("test", "ood"):
            found = verdict.score(group, split)
            spread = f" [{found.lo:.3f}, {found.hi:.3f}]" if len(group.folders) >= verdict.SEEDS else ""
            part = verdict.stratum(group, split)
            cells.append(f"{found.value:.3f}{spread}" + (f" ({part[1]:.3f} {part[0]})" if part else ""))
        top = verdict.ceiling(group)
        cells += ["1" if top > 1 - 1e-3 else f"{top:.3f} (share {found.value / top:.2f})", verdict.beside_the_paper(group)]
        print(f"| {group.setting} | {group.label} | {parameters:,} | {len(group.folders)} | {' | '.join(cells)} |")
    for folder in folders:
        if not tables.finished(folder):
            print(f"| {folder.name} | | | | {zoo.overview(folder)['note']} | | | |")
    return 0


def _diagnose(folders: list[Path]) -> int:
    """Groups of models with their label, and what they lack on held-out compositions in parts; those without tables are left
    out, and said."""
    from compolens import diagnosis, tables, verdict

    columns = ["setting", "architecture", "seeds", "diagnosis", "ood", "lacks", *diagnosis.PARTS, "its code is read at"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for group in verdict.group([f for f in folders if tables.finished(f)]):
        found = diagnosis.diagnose(group.folders)
        if found is None:
            print(f"{group.label}: no tables; type: compolens explain {group.folders[0]}", file=sys.stderr)
            continue
        lacks = found.scores["ceiling"] - found.scores["ood"]
        told = [f"{part.value:.3f}" for part in found.parts["ood"].values()]
        if len(group.folders) >= verdict.SEEDS:
            told = [str(part) for part in found.parts["ood"].values()]
        cells = [
            group.setting,
            group.label,
            str(len(group.folders)),
            found.label,
            f"{found.scores['ood']:.3f}",
            f"{lacks:.3f}",
        ]
        print(f"| {' | '.join([*cells, *told, found.place])} |")
    return 0


def _models(options: argparse.Namespace) -> int:
    from compolens import tables, zoo

    roots = options.folders or [d for d in ("trained_models", "runs") if Path(d).is_dir()]
    if not roots:
        raise ConfigError("there is neither trained_models nor runs here; name a folder: compolens models DIR")
    if options.summary:
        return _summarise(tables.find(roots))
    if options.diagnosis:
        return _diagnose(tables.find(roots))
    columns = ["model", "architecture", "task", "steps", "parameters", "train", "test", "ood", "note"]
    rows = []
    for folder in tables.find(roots):
        row = zoo.overview(folder, _outside(options.classes))
        rows.append(
            [
                f"{v:.4f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v
                for v in (row.get(c, "") for c in columns)
            ]
        )
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    _print_table(columns, rows)
    return 0


COMMANDS: dict[str, Callable[[Any], Parser]] = {
    "train": _make_train,
    "probe": _make_probe,
    "analyze": _make_analyze,
    "explain": _make_explain,
    "challenge": _make_challenge,
    "report": _make_report,
    "record": _make_record,
    "models": _make_models,
}


# ---- shared ----------------------------------------------------------------------------------------------------------
def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device {device!r} cannot be used ({reason}); allowed here: cpu" + (", cuda" if torch.cuda.is_available() else "")
        ) from error


def _outside(places: typing.Iterable[str]) -> tuple[type, ...]:
    """The classes that --with names: package.module:Class or file.py:Class."""
    import importlib

    from compolens.recipes import load_file

    classes = []
    for place in places:
        where, colon, name = place.rpartition(":")
        if not colon:
            raise ConfigError(f"--with wants PLACE:CLASS, such as my_package.models:MyNet or my_file.py:MyNet; got {place!r}")
        try:
            module = load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
            classes.append(getattr(module, name))
        except (ImportError, AttributeError, OSError) as error:
            raise ConfigError(f"--with {place}: {error}") from error
    return tuple(classes)


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, ["─" * w for w in widths], *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _conclude(outcome: Any) -> int:
    for name, reason in outcome.failures.items():
        print(f"compolens: error: {name}: {reason}", file=sys.stderr)
    if outcome.signum:
        return 128 + outcome.signum
    if outcome.inapplicable and not outcome.results and not outcome.failures:  # nothing at all was done: no silent success
        name, reason = next(iter(outcome.inapplicable.items()))
        print(f"compolens: error: {name}: does not apply: {reason}", file=sys.stderr)
        return 1
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
