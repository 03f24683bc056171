"""The folder of a run: whose it is, what lies in it, and its card."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compolens.foundation import digests, files
from compolens.foundation.configs import ConfigError, classes_of, construct, describe
from compolens.foundation.model_folders import network_name
from compolens.training.distributed import Processes
from compolens.training.runs import Run

RESUME = "resume.safetensors"
"""The checkpoint of a training that has not ended."""
DIVERGED = "diverged.txt"
"""Says why a training ended early, until it is begun again."""


def kept_weights(folder: Path, step: int) -> Path:
    """Where the weights of a kept step are.

    Args:
        folder: the model's folder.
        step: the step.

    Returns:
        The path, whether or not it exists.
    """
    return folder / "steps" / f"{step}.safetensors"


@contextlib.contextmanager
def locked_folder(run: Run, folder: Path, group: Processes) -> Iterator[dict[str, Any] | None]:
    """The folder, locked and described, for as long as the context lasts.

    Args:
        run: what the folder is of.
        folder: the model's folder.
        group: the processes that train together.

    Returns:
        A context; it gives the scores of a training that has already ended, else None.
    """
    with contextlib.ExitStack() as held:

        def lock() -> str:
            held.enter_context(files.locked(folder))
            check_folder(run, folder)
            _sweep(folder)
            if (folder / "scores.json").exists():
                return json.dumps(digests.read_scores(folder))
            if not (folder / "config.json").exists():
                files.write_json(folder / "config.json", run.config())
            digests.begin(folder)
            return "null"

        yield json.loads(group.from_first(lock))


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind: half-written files, and the checkpoint of a run that had finished."""
    for torn in (*folder.glob(".*.tmp"), *folder.glob("steps/.*.tmp")):
        torn.unlink()
    if (folder / "scores.json").exists():
        (folder / RESUME).unlink(missing_ok=True)


def check_folder(run: Run, folder: Path) -> None:
    """Require that a folder holds this run, or nothing.

    Args:
        run: the run.
        folder: its folder, which need not exist.

    Raises:
        ConfigError: it holds another run, or something that is no run.
    """
    config = folder / "config.json"
    if config.exists():
        described = digests.read_run(folder)
        digests.check(folder, digests.CONFIG)
        try:
            same = construct(described, classes_of(run)) == run
        except ConfigError:
            same = False
        if not same:
            raise ConfigError(f"{folder} holds another run ({_difference(described, describe(run))}); choose another --out")
    elif folder.exists() and any(p.name != ".lock" and not p.name.endswith(".tmp") for p in folder.iterdir()):
        raise ConfigError(f"{folder} exists and holds no run; choose another --out")


def _difference(old: Any, new: Any, path: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(k for k in old if k not in new)]:
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    return f"{path or 'run'} is {old!r} there, {new!r} here"


def card(run: Run, name: str, scores: dict[str, Any]) -> str:
    """The model card: what was trained on what, the split, the scores with their standard error over compositions.

    Args:
        run: the run.
        name: the model's name.
        scores: as in scores.json.

    Returns:
        Markdown.
    """
    split, called = run.task.describe_split(), network_name(run.config()["run"]["architecture"])
    trained = f"{scores['step']:,} steps of {run.batch_size} episodes" if run.steps else "not trained here"
    environments = "; ".join(
        f"torch {e['torch']}, {e['device']} ({e['hardware']}), {e['threads']} thread(s)"
        + (f", {e['processor']}, compolens {e['compolens']}" if "processor" in e else "")
        + (f", {e['processes']} processes" if "processes" in e else "")
        for e in scores["environments"]
    )
    other = scores.get("mixed precision", {})
    columns = ["split", scores["score"], "± s.e. over compositions", "episodes"]
    columns += [f"{scores['score']} with products in {run.precision}"] if other else []
    rows = [
        [s, f"{scores[s]['score']:.4f}", f"{scores[s]['se']:.4f}", f"{scores[s]['episodes']:,}"]
        + ([f"{other[s]['score']:.4f}"] if other else [])
        for s in run.task.splits
    ]
    lines = [
        f"# {name}",
        "",
        f"{called} ({scores['parameters']:,} parameters) on {type(run.task).__name__}, {trained}.",
        "",
        *("| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)),
        "",
        "train: compositions seen; test: the same, fresh episodes; ood: held-out compositions."
        + (" validation: set aside for choosing settings." if "validation" in run.task.splits else ""),
        "",
        "## Split",
        "",
        *(f"- {key}: {value}" for key, value in split.items()),
        "",
        "## Made with",
        "",
        f"- {environments}",
        f"- init seed {run.init_seed}, data seed {run.data_seed}; every setting is in config.json",
        "",
    ]
    return "\n".join(lines)
