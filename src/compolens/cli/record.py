"""`compolens record`: activations as arrays on disk."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
from typing import Any

from compolens.cli.flags import Parser, check_device, command_parser, common_flags, count, outside, seed, some
from compolens.cli.train import with_data
from compolens.foundation.configs import ConfigError


def _step(text: str) -> int | None:
    return None if text == "final" else count(text)


def make(commands: Any) -> Parser:
    """Add `compolens record` to `commands`."""
    parser = command_parser(
        commands, "record", run, "export activations: one .npy per hook point beside codes, compositions and tokens",
        "compolens record runs/F-softmax-0 --sites 'blocks.*.hook_resid_p*' --splits train test ood -o activations\n"
        "  compolens probe code_structure activations",
    )  # fmt: skip
    parser.add_argument("folder", help="a model folder")
    parser.add_argument(
        "--sites", nargs="+", required=True, metavar="SITE", help="hook points, or patterns such as 'blocks.*.hook_resid_post'"
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where the arrays go")
    parser.add_argument(
        "--splits", "--split", nargs="+", default=["ood"], metavar="SPLIT",
        help="train, test, ood (default ood); probes want all three",
    )  # fmt: skip
    parser.add_argument("--episodes", type=some, default=1024, metavar="N", help="how many episodes per split (default 1024)")
    parser.add_argument("--seed", type=seed, default=0, help="which episodes (default 0)")
    parser.add_argument("--step", type=_step, default=None, help="weights of a kept step (default: final)")
    parser.add_argument("--untrained", action="store_true", help="record the untrained control, too; most probes need it")
    parser.add_argument("--half", action="store_true", help="activations as float16, in half the space")
    common_flags(parser, "data", "device", "with")
    return parser


def run(options: argparse.Namespace) -> int:
    """Do what `options` ask for; returns the exit status."""
    from compolens import activations, zoo

    check_device(options.device)
    trained = zoo.load(options.folder, options.step, outside(options.classes), options.device)
    sites: list[str] = []
    for pattern in options.sites:
        sites += [name for name in _matching_sites(trained.model, pattern) if name not in sites]
    origin = with_data(trained.run, options.data)
    task = origin.task if options.data else trained.task
    for split in options.splits:
        task.check_split(split)
    batches = {s: activations.draw(task, s, options.episodes, options.seed, options.device) for s in options.splits}
    untrained = trained.untrained_control() if options.untrained else None
    recording = activations.record(
        trained.model, batches, sites, options.output, run=origin, step=trained.step, untrained=untrained, half=options.half
    )
    for name in sorted(recording.names, key=lambda name: ("/" in name, name)):
        print(recording.folder / f"{name}.npy")
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
