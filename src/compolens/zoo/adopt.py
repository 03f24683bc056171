"""A network of one's own: `adopt` puts hook points into any `torch.nn.Module`, `save` makes a model folder of it."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from compolens.activations.sites import sites as sites_of
from compolens.activations.streams import draw
from compolens.foundation import digests, files
from compolens.foundation.configs import ConfigError, DoesNotApply, require
from compolens.hooks import HookPoint, TaskLoss
from compolens.models.base import count_parameters
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import SPLITS
from compolens.training import Run, card, check_folder, different, environment, evaluate, stored_of
from compolens.zoo.adopted import FAILURES, Adopted, AdoptedModel
from compolens.zoo.adopted.layouts import layout_of
from compolens.zoo.folders import TrainedModel

FEW = 3
"""Episodes on which a network is tried."""
GOES_ROUND = (
    "part of it goes round the submodule, such as by a skip connection or as another argument, so what a probe writes there "
    "does not reach all that follows; name the output of a submodule that all of it passes, such as an nn.Identity() put there"
)
"""Said of the residual stream or an explicit code that is hooked at an input which is not all that is used of it."""


def adopt(
    module: nn.Module,
    task: TaskFamily,
    *,
    sites: Mapping[str, Any] | None = None,
    call: Callable[[nn.Module, Tensor], Any] | None = None,
    reinit: Callable[..., nn.Module] | None = None,
    built_by: Callable[..., nn.Module] | None = None,
    arguments: Mapping[str, Any] | None = None,
    roles: Mapping[str, Sequence[int]] | None = None,
    evaluation_episodes: int = 1024,
) -> AdoptedNetwork:
    """Any network in evaluation mode, on any task, for every probe and recipe; the network itself stays as it is.

    Everything is tried on a few episodes: together, again, and each alone, since an answer is a function of its own episode.
    Warnings tell what is odd about the sites. Part of a residual stream or of an explicit code may go round its hook point. A
    site may change no answer, or not have the shape that its name says. Its name may nearly be one that probes look for. And
    the residual stream may not be named as a whole.

    Args:
        module: the network, in evaluation mode. Its output is (batch, seq, d_out), or the answers alone, (batch, answers,
            d_out), or (batch, d_out) where there is one.
        task: the family.
        sites: as in `Adopted` (None: those of a causal language model of transformers or of a TransformerBridge, which are
            known: `layouts`; it is then also known how it is called, and made again with fresh weights, unless it is a bridge
            around something else).
            Tensors there are (batch, positions, width) for the residual stream ("blocks.*.hook_resid_*"),
            the batch first for all.
        call: as in `Adopted`.
        reinit: as in `Adopted`.
        built_by: what makes the network again when its folder is loaded, ``built_by(**arguments)`` (default: the network's
            class).
        arguments: its arguments, plain values by name.
        roles: as in `Adopted`.
        evaluation_episodes: as in `Run`.

    Returns:
        The network as a trained model, which `save` makes a folder of.

    Raises:
        ConfigError: something does not fit; it says what.
    """
    require(isinstance(task, TaskFamily), f"adopt wants a task family such as Hyperteacher(), got {task!r}")
    _check_module(module)
    if sites is None:
        known = layout_of(module)
        names = ", ".join([path for path, _ in module.named_modules() if path][:6])
        if known is None:
            raise ConfigError(
                f"where things are in a {type(module).__name__} is yours to say: adopt(…, sites={{"
                f'"blocks.0.hook_resid_post": ("SUBMODULE", "output"), …}}); its submodules: {names}, … '
                "Known without are causal language models of transformers and TransformerBridge"
            )
        sites, call = known.sites, call or known.call
        if built_by is None and known.built_by is not None:
            built_by, arguments, reinit = known.built_by, known.arguments, reinit or known.built_by
    architecture = Adopted(built_by or type(module), arguments or {}, sites, call, reinit, roles or {})
    run = Run(architecture, task, steps=0, evaluation_episodes=evaluation_episodes)
    model = architecture.around(module, d_out=task.d_out, seq=task.seq, answers=task.answers)
    model.task_loss = TaskLoss(task.loss)
    adopted = AdoptedNetwork(run, model, task, Path(type(module).__name__), 0)
    _check_call(module, call)
    if reinit is not None:
        _check_reinit(reinit, dict(architecture.arguments))
    few = FEW if task.seq != FEW else FEW + 1  # so that a batch cannot be taken for a sequence
    (episodes,) = draw(task, "train", few, "adopt", adopted.device)
    plain, held = _tried(model, episodes.tokens)
    _check_answers(model, episodes.tokens, plain)
    _check_sites(model, held, few)
    _check_alone(model, episodes.tokens, held)
    given = [name for name, *_ in architecture.sites]  # what stands there by itself is said of what it was made from
    shown = {name: tensor for name, tensor in held.items() if name in given}
    for told in [*_misspelt(given), *_misshapen(shown), *_dead(model, episodes.tokens, plain, shown), *_without(model)]:
        warnings.warn(told, stacklevel=2)
    for name in _passed_by(model, episodes.tokens):
        warnings.warn(f"site {name!r}: {GOES_ROUND}", stacklevel=2)
    return adopted


@dataclass(frozen=True)
class AdoptedNetwork(TrainedModel):
    """A network that was trained elsewhere, with its task. `folder` is where it would lie; nothing is there before `save`."""

    def save(self, folder: str | Path, note: str = "") -> Path:
        """Write an ordinary model folder, scored on every split of the task.

        The folder keeps weights, and names of classes and functions. That it can be loaded again is tried first.

        Args:
            folder: where it goes.
            note: for its card, such as where the network was trained.

        Returns:
            The folder.

        Raises:
            ConfigError: the folder holds another model or cannot be made, or the network cannot be made again.
        """
        folder, run = Path(folder), self.run
        config = run.config()
        self._check_rebuilt()
        if run.architecture.reinit is not None:  # type: ignore[attr-defined]
            _ = self.why_no_untrained_control  # which makes it once; an error says what does not fit
        require(
            not (folder / "scores.json").exists(),
            f"{folder} holds a finished model; choose another folder, or delete it. In a file that --with names, save under "
            "`if __name__ == '__main__':`, since naming it runs it",
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"no folder can be made at {folder}: {error.strerror}. {files.way_out(error)}") from error
        check_folder(run, folder)
        scores: dict[str, Any] = {"step": 0, "score": run.task.score_name}
        n = 4 * run.evaluation_episodes
        for split in run.task.splits:
            found = evaluate(self.model, run.task, split, n, f"final/{run.data_seed}", str(self.device), 256)
            scores[split] = {"score": found.score, "se": found.se, "episodes": different(run.task, split, n)}
        scores |= stored_of(run.task)
        scores |= {"parameters": count_parameters(self.model), "environments": [environment(str(self.device))]}
        told = card(run, folder.name, scores) + (f"\n## Note\n\n{note}\n" if note else "")
        history = "step,loss,train,test,ood\n0,," + ",".join(str(scores[split]["score"]) for split in SPLITS) + "\n"
        with files.locked(folder):
            files.write_json(folder / "config.json", config)
            files.write_tensors(folder / "weights.safetensors", _weights(self.model), {"step": 0})
            files.write_atomically(folder / "history.csv", history.encode())
            files.write_atomically(folder / "README.md", told.encode())
            digests.finish(folder, scores)  # last: the presence of scores.json means "finished"
        return folder

    @torch.no_grad()
    def _check_rebuilt(self) -> None:
        """Raise unless ``built_by(**arguments)`` with these weights answers what this network answers."""
        again = self.run.build().to(self.device).eval()
        name = getattr(self.run.architecture.module, "__name__", "built_by")  # type: ignore[attr-defined]
        way = "give adopt(…, arguments={…}) or built_by=… so that it makes the same network"
        try:
            again.load_state_dict(_weights(self.model))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"{name} makes a network that these weights do not fit ({reason}); {way}") from error
        (episodes,) = draw(self.task, "test", FEW, "adopt", self.device)
        ours, theirs = _kinds(self.model), _kinds(again)
        if ours != theirs:
            way = (
                f"its weights are {' and '.join(theirs)}, and of this one {' and '.join(ours)}; adopt net.float(), or give "
                "built_by=a function in a file of yours that makes it so, such as MyNet(…).half()"
            )
        try:
            same = torch.equal(again(episodes.tokens), self.model(episodes.tokens))
        except FAILURES as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{name} makes a network that fails where this one answers ({_reason(error, 200)}); {way}"
            ) from error
        require(same, f"{name} makes a network that answers otherwise with the same weights; {way}")


def _kinds(module: nn.Module) -> list[str]:
    """What numbers its weights are, such as ["torch.float16"]."""
    return sorted({str(parameter.dtype) for parameter in module.parameters() if parameter.is_floating_point()})


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Its state by name; tensors that share memory (tied weights) get a copy each."""
    state = model.state_dict()
    for name, value in state.items():
        require(isinstance(value, Tensor), f"the state {name!r} is a {type(value).__name__}, and a folder keeps tensors alone")
    return {name: value.detach().clone() for name, value in state.items()}


# ---- checks ----------------------------------------------------------------------------------------------------------
def _check_module(module: Any) -> None:
    what = f"the class {module.__name__}" if inspect.isclass(module) else repr(module)[:80]
    require(isinstance(module, nn.Module), f"adopt wants a torch.nn.Module, got {what}; make one: adopt(MyNet(…).eval(), …)")
    name = type(module).__name__
    require(
        not isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel),
        f"{name} spreads a network over several devices, where hooks do not reach it; adopt the network in it: "
        "adopt(net.module, …)",
    )
    require(
        not any(p.is_meta for p in module.parameters()),
        f"{name} has shapes and no weights (device 'meta'); load them first: "
        "net.to_empty(device='cpu'), then net.load_state_dict(…)",
    )
    learning = [path or name for path, part in module.named_modules() if part.training]
    if learning:
        raise ConfigError(
            f"{name} is in training mode ({learning[0]}), where dropout and batch statistics change its answers; "
            "call .eval() on it first"
        )
    compiled = [part for part in module.modules() if part._compiled_call_impl is not None or hasattr(part, "_orig_mod")]
    require(not compiled, f"{name} was compiled, which ignores hooks without a word; adopt it uncompiled")
    require(any(True for _ in module.parameters()), f"{name} has no parameters, so there is nothing to measure or to save")


def _check_call(module: nn.Module, call: Callable | None) -> None:
    """Raise unless the arguments fit; both signatures are shown."""
    target, given, how = (
        (module.forward, (None,), "module(tokens)") if call is None else (call, (module, None), "call(module, tokens)")
    )
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        name = f"{type(module).__name__}.forward" if call is None else getattr(call, "__name__", "call")
        raise ConfigError(
            f"the network is run as {how}, but {name} is {name.rpartition('.')[2]}{signature}: {error}; "
            "give call=, a function (module, tokens) -> output"
        ) from error


def _check_reinit(reinit: Callable, arguments: dict[str, Any]) -> None:
    """Raise unless it can be called with the arguments."""
    try:
        inspect.signature(reinit).bind(**arguments)
    except ValueError:  # it does not tell
        return
    except TypeError as error:
        name, got = getattr(reinit, "__name__", "reinit"), ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        raise ConfigError(
            f"the untrained control is made by reinit({got}), but {name} is {name}{inspect.signature(reinit)}: {error}; give "
            "arguments={…}, or a function in a file of yours that makes the network"
        ) from error


def _reason(error: Exception, most: int = 300) -> str:
    """What failed, on one line: its kind, unless the error is ours, and what it says."""
    kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())[:most]


@torch.no_grad()
def _tried(model: AdoptedModel, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The prediction, with the hook points at rest, and what they hold; an error says what the network was given."""
    try:
        plain = model(tokens)
        return plain, dict(model.run_with_cache(tokens)[1]) if model.hook_dict else {}
    except ConfigError:
        raise
    except FAILURES as error:
        reason = _reason(error)
        ids = tokens.is_floating_point() and bool(((tokens == 0) | (tokens == 1)).all()) and bool((tokens.sum(-1) < 2).all())
        way = "give call=, a function (module, tokens) -> output, that hands them over as the network wants them"
        way += "; these are ids shown one-hot, and tokens.argmax(-1) are the ids" if ids else ""
        other = [kind for kind in _kinds(model.module) if kind != str(tokens.dtype)]
        if other and "indices" not in reason:  # an embedding that misses ids says so, whatever its weights are
            way = f"its weights are {' and '.join(other)}, and tokens are {tokens.dtype}; adopt net.float(), or {way}"
        raise ConfigError(
            f"{type(model.module).__name__} failed on tokens {tuple(tokens.shape)} {tokens.dtype}: {reason}; {way}"
        ) from error


@torch.no_grad()
def _check_answers(model: AdoptedModel, tokens: Tensor, plain: Tensor) -> None:
    """Raise unless the answers are numbers, the same when asked again, and those of each episode alone."""
    name, at = type(model.module).__name__, list(model.answers)
    broken = int(plain[:, at].isnan().any(-1).any(-1).sum())
    require(
        not broken,
        f"{name} answers NaN, not a number, to {broken} of {len(tokens)} episodes; look for weights that are not finite, or "
        "for a position that attends to none",
    )
    away = _away(model, plain[:, at], model(tokens)[:, at])
    require(
        away is None,
        f"{name} is not deterministic: asked again, it answers the same episodes otherwise ({away}); in evaluation mode draw "
        "nothing and keep no state, such as by nn.functional.dropout(x, p, self.training) for a dropout",
    )
    try:
        alone = torch.cat([model(one) for one in tokens.split(1)])
    except FAILURES as error:
        raise ConfigError(
            f"{name} answers {len(tokens)} episodes together and fails on one of them alone: {_reason(error)}; let it take a "
            "batch of 1, such as by .squeeze(-1), which names the dimension, in the stead of .squeeze()"
        ) from error
    away = _away(model, plain[:, at], alone[:, at])
    require(
        away is None,
        f"the answer of {name} depends on the rest of the batch: alone, an episode is answered otherwise ({away}). "
        f"{BATCH_FIRST}; a normalisation must use statistics of training alone, as nn.BatchNorm1d does in evaluation mode",
    )


@torch.no_grad()
def _check_alone(model: AdoptedModel, tokens: Tensor, held: dict[str, Tensor]) -> None:
    """Raise where what stands at a site depends on the rest of the batch, though the answers do not: a token that all episodes
    have at the answer hides it there. What is padded, and so shorter alone, is not looked at."""
    alone = [_tried(model, one)[1] for one in tokens.split(1)]
    for name, together in held.items():
        apart = [one[name] for one in alone if name in one and one[name].shape[1:] == together.shape[1:]]
        if len(apart) == len(together) and together.is_floating_point() and together.isfinite().all():
            away = _away(model, together, torch.cat(apart))
            require(
                away is None,
                f"what stands at {name} depends on the rest of the batch: alone, an episode has another there ({away}). "
                f"{BATCH_FIRST}",
            )


BATCH_FIRST = (
    "torch's TransformerEncoderLayer, MultiheadAttention, LSTM and the like take (seq, batch, width) unless they are built "
    "with batch_first=True: build them so, and the weights fit"
)


def _away(model: AdoptedModel, answers: Tensor, others: Tensor) -> str | None:
    """How far other answers are, in words; None where that may be rounding, which goes with the size of a batch."""
    numbers = [p.dtype for p in model.parameters() if p.is_floating_point()] + [answers.dtype] * answers.is_floating_point()
    rounding = max([1e-3, *(torch.finfo(kind).eps ** 0.5 for kind in numbers)])
    answers, others = answers.double(), others.double()
    finite = answers.isfinite()
    size = float(answers[finite].abs().max()) if bool(finite.any()) else 1.0
    if torch.allclose(others, answers, rtol=rounding, atol=rounding * size):
        return None
    distance = (others - answers).nan_to_num(float("inf"))[finite].abs()
    return f"by up to {float(distance.max()):.2g}, where they reach {size:.2g}" if distance.numel() else "not finite"


@torch.enable_grad()
def _passed_by(model: AdoptedModel, tokens: Tensor) -> list[str]:
    """Sites of the residual stream or the explicit code of which a part goes round the hook point: the prediction's derivative
    by the activation is then not that by what the hook point hands on. Nothing is said of what has no derivative."""
    return [
        name for name in model.hook_dict if ".hook_resid_" in name or name == "hook_code" if _goes_round(model, tokens, name)
    ]


def _goes_round(model: AdoptedModel, tokens: Tensor, name: str) -> bool:
    tokens = tokens.clone().requires_grad_() if tokens.is_floating_point() else tokens
    tap = next(tap for tap in model.taps if tap.name == name)
    whole: list[GradientEdge] = []
    part: list[Tensor] = []

    def look(tensor: Tensor, hook: HookPoint) -> None:
        """The tap is in use, and watched."""

    def cut(tensor: Tensor, hook: HookPoint) -> Tensor:
        part.append(tensor.detach().requires_grad_())
        return part[0]

    try:
        derivatives = []
        tap.watch = lambda tensor: whole.append(get_gradient_edge(tensor))
        for hook, seen in ((look, whole), (cut, part)):
            prediction = model.run_with_hooks(tokens, fwd_hooks=[(name, hook)])
            weights = (
                torch.arange(1, 1 + prediction.numel(), device=prediction.device).to(prediction).cos().view_as(prediction)
            )
            derivatives.append(torch.autograd.grad((prediction * weights).sum(), seen[0], allow_unused=True)[0])
    except RuntimeError:  # computed without gradients, or frozen
        return False
    finally:
        tap.watch = None
    total, handed = (d.view_as(part[0]) if d is not None else torch.zeros_like(part[0]) for d in derivatives)
    if not bool(total.isfinite().all()):
        return False
    return not torch.allclose(total, handed, rtol=1e-3, atol=1e-4 * float(total.abs().max()))


WIDE = {
    **dict.fromkeys(("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out", "hook_post"), 3),
    **dict.fromkeys(("hook_q", "hook_k", "hook_v", "hook_z", "hook_result", "hook_pattern", "hook_attn_scores"), 4),
    "attn.hook_code": 4,
}
"""Dimensions of a hook point's tensor in TransformerLens."""
BY_HEAD = "(batch, position, head, d_head)"
SHAPES = {
    **dict.fromkeys(("hook_q", "hook_k", "hook_v"), BY_HEAD),
    "hook_z": f"{BY_HEAD}, before the output projection; behind it the name is hook_attn_out",
    **dict.fromkeys(("hook_pattern", "hook_attn_scores"), "(batch, head, query, key)"),
    "attn.hook_code": "(batch, query, key, head); where hook_pattern is named, it is there by itself",
}
OWN = (
    "hook_code", "hook_embed", *(f"blocks.{{l}}.hook_{name}" for name in
    ("resid_pre", "resid_mid", "resid_post", "attn_in", "attn_out", "mlp_in", "mlp_out")), "blocks.{l}.mlp.hook_post",
    *(f"blocks.{{l}}.attn.hook_{name}" for name in ("q", "k", "v", "z", "result", "pattern", "attn_scores", "code")),
)  # fmt: skip
"""Hook points that probes look for in an adopted network."""


def _misspelt(names: Iterable[str]) -> Iterator[str]:
    """Names that are nearly one that probes look for, in words; one that begins with such a name was meant."""
    for name in names:
        number = next((part for part in name.split(".") if part.isdecimal()), "0")
        known = [one.format(l=number) for one in OWN]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near and not any(name.startswith(one) for one in known):
            yield f"site {name!r}: no probe looks for that name; did you mean {near[0]!r}?"


def _misshapen(held: Mapping[str, Tensor]) -> Iterator[str]:
    """What is not shaped as its TransformerLens name says, in words."""
    stream = next((tensor for name, tensor in held.items() if ".hook_resid_" in name), None)
    for name, tensor in held.items():
        last, got = name.split(".")[-1], f"site {name!r} holds a tensor {tuple(tensor.shape)}"
        last = "attn.hook_code" if name.endswith("attn.hook_code") else last
        if tensor.ndim != WIDE.get(last, tensor.ndim) or not _in_order(last, tensor, stream):
            wanted = SHAPES.get(last, f"{WIDE[last]} dimensions")
            yield f"{got}, and what TransformerLens calls so has {wanted}; name it by what it is"
        elif last in ("hook_attn_out", "hook_mlp_out") and stream is not None and tensor.shape[-1] != stream.shape[-1]:
            yield f"{got}, and what is added to the stream is as wide as that, {stream.shape[-1]}; name it by what it is"


def _in_order(name: str, tensor: Tensor, stream: Tensor | None) -> bool:
    """Whether positions stand where they belong, as far as lengths tell."""
    if name in ("hook_pattern", "hook_attn_scores"):
        return tensor.shape[2] == tensor.shape[3]
    if name == "attn.hook_code":
        return tensor.shape[1] == tensor.shape[2]
    return stream is None or WIDE.get(name) != 4 or tensor.shape[1] == stream.shape[1]


@torch.no_grad()
def _dead(model: AdoptedModel, tokens: Tensor, plain: Tensor, held: Mapping[str, Tensor]) -> Iterator[str]:
    """Sites whose change changes no answer, in words: a patch there would read "does not matter"."""
    for name, tensor in held.items():
        if not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
        other = tensor + (float(tensor.std()) + 1.0) * noise
        try:
            changed = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda t, hook, other=other: other)])
        except (ConfigError, *FAILURES):
            continue
        if torch.equal(changed, plain):
            yield (
                f"site {name!r}: changing it changes no answer, so whatever is written there would seem not to matter; name a "
                "tensor that the network goes on with"
            )


def _without(model: AdoptedModel) -> Iterator[str]:
    """What most probes ask for and was not named, in words."""
    try:
        sites_of(model)
    except DoesNotApply as error:
        yield f"{error}; else most probes do not apply"


def _check_sites(model: AdoptedModel, held: Mapping[str, Tensor], batch: int) -> None:
    """Raise unless every site holds a tensor that probes can use."""
    lengths = set()
    for name, tensor in held.items():
        got = f"site {name!r} holds a tensor {tuple(tensor.shape)}"
        second = f": here it is the second. {BATCH_FIRST}; or name an nn.Identity() put where the batch comes first"
        require(
            tensor.ndim >= 2 and len(tensor) == batch,
            f"{got} for {batch} episodes; a site's first dimension is the batch"
            + (second if tensor.ndim > 2 and tensor.shape[1] == batch else ""),
        )
        if ".hook_resid_" in name:
            require(tensor.ndim == 3, f"{got}; the residual stream is (batch, positions, width)")
            lengths.add(tensor.shape[1])
    require(
        len(lengths) < 2, f"the residual stream has {' and '.join(map(str, sorted(lengths)))} positions; it needs one length"
    )
    own, named = model.cfg.n_ctx, [p for positions in model.roles.values() for p in positions]
    for length in lengths:
        require(
            own is None or length == own,
            f"the residual stream has {length} positions, an episode {own}; say which are which in the network's own: "
            "roles={'context': [0, 1, …], 'readout': […]}",
        )
        for position in named:
            require(
                -length <= position < length,
                f"roles name position {position}, but the residual stream has positions 0 to {length - 1}; -1 is the last",
            )
